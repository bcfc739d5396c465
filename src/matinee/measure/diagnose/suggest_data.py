"""Changes that make loading cheaper: how clips are stored, read, decoded and handed over.

Pure: facts in, changes out. What is on already is not proposed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from math import ceil, floor

import numpy as np

from matinee.errors import ConfigError
from matinee.measure.diagnose.changes import Change
from matinee.measure.diagnose.facts import Facts, Loading, Stored
from matinee.media.plan import packets_to_feed
from matinee.pack.cost import MAX_SPAN, ClipShape, Estimate, estimate, gop_table
from matinee.pack.profiles import Profile, make_profile

_MOST_DECODERS = 16  # as data/decoders.py chooses by itself
_LOWEST = 128  # pixels of a short side that are worth proposing
_WORTH = 0.85  # of its time now, that a clip from another pack must be below


def suggest_data(facts: Facts) -> Iterator[Change]:
    """Changes to storage, decode and h2d."""
    loading, stored = facts.loading, facts.stored
    if loading is not None and loading.cost.clips:
        if stored is not None:
            yield from _storing(facts, loading, stored)
            yield from _storage(facts, loading, stored)
        yield from _decoding(facts, loading)
    yield from _copying(facts)


def _storing(facts: Facts, loading: Loading, stored: Stored) -> Iterator[Change]:
    """Other encodings of the pack."""
    shape = clip_shape(facts, stored)
    now = own_profile(stored)
    if shape is None or loading.work_s <= 0:
        return
    size = (stored.width, stored.height)
    before = _estimate(now, shape, size, stored)
    if before is None:
        return
    # The model's milliseconds are those of another machine: this one's differ by a factor.
    machine = 1000 * loading.work_s / before.ms_per_clip
    stride = min(16, shape.stride or now.stride)
    short = min(size)
    layered = make_profile("layered", stride=stride, short_side=_even(short))
    # 288 for clips of 224, as packs have by default.
    lower = _even(min(short, max(_LOWEST, round(facts.config.clip.size * 9 / 7))))
    for profile in (layered, replace(layered, short_side=lower)):
        same = stored.profile is not None and (now.name, now.stride) == ("layered", stride)
        if (same and profile is layered) or (profile is not layered and lower > 0.9 * short):
            continue
        shrunk = profile.short_side / short
        there = (max(2, round(size[0] * shrunk)), max(2, round(size[1] * shrunk)))
        after = _estimate(profile, shape, there, stored)
        if after is None or after.ms_per_clip > _WORTH * before.ms_per_clip:
            continue
        part = after.ms_per_clip / before.ms_per_clip
        was = 1000 * loading.work_s
        height = f" at {profile.short_side} pixels" if shrunk < 1 else ""
        yield Change(
            f"re-pack with stride {stride} layers{height}: decode {was:.3g} → "
            f"{machine * after.ms_per_clip:.3g} ms a clip",
            "decode",
            facts.saved_by_loading(1 - (1 - part) * loading.rest_share, of="decode"),
            "model",
            f"{after.fed.total:.0f} frames decoded for {shape.frames} instead of "
            f"{_decoded(loading, before):.0f}, and the cost model of pack/cost.py, scaled to what "
            "a clip takes here",
            command=f"matinee pack VIDEOS --out new.pack --profile layered --stride {stride} "
            f"--short-side {profile.short_side}",
            pack={"name": "layered", "stride": stride, "short_side": profile.short_side},
            learns=shrunk < 1,
        )


def clip_shape(facts: Facts, stored: Stored) -> ClipShape | None:
    """The clips of a run, as the cost model takes them; None for those it does not know."""
    clip = facts.config.clip
    if clip.fps is not None:
        return None
    shape = ClipShape(clip.decoded_frames, clip.stride if clip.sampling == "dense" else 0)
    return shape if shape.span <= MAX_SPAN else None


def own_profile(stored: Stored) -> Profile:
    """How a pack was encoded; files as found are taken as x264 writes them by default."""
    known = stored.profile
    if known is None:
        return make_profile("small", short_side=_even(min(stored.width, stored.height)))
    return Profile(**known)  # type: ignore[arg-type]


def _estimate(
    profile: Profile, shape: ClipShape, size: tuple[int, int], stored: Stored
) -> Estimate | None:
    try:
        return estimate(profile, shape, size, video_frames=stored.video_frames)
    except ConfigError:  # a structure whose costs were not measured
        return None


def _decoded(loading: Loading, before: Estimate) -> float:
    counted = loading.cost.frames_decoded / max(1, loading.cost.clips)
    return counted or before.fed.total


def _even(pixels: float) -> int:
    return max(16, 2 * round(pixels / 2))


def _storage(facts: Facts, loading: Loading, stored: Stored) -> Iterator[Change]:
    held = facts.stage("storage")
    read = 1000 * loading.read_s
    megabytes = loading.per_clip(loading.cost.bytes) / 1e6
    if stored.remote and not stored.cached:
        yield Change(
            "keep what is read on a local disk",
            "storage",
            held,
            "model",
            f"a clip waits {read:.3g} ms for {megabytes:.2g} MB; from the second epoch on it comes "
            "from the disk",
            flags={"data.cache": "matinee-cache"},
        )
    elif not stored.remote:
        yield Change(
            "put the pack on a faster disk, or in memory (/dev/shm)",
            "storage",
            held,
            "model",
            f"a clip waits {read:.3g} ms for {megabytes:.2g} MB",
            command=f"cp -r {shlex.quote(stored.path)} /a/faster/disk/",
        )
    if loading.decoders < _MOST_DECODERS and loading.rest_share < 0.7:
        more = min(_MOST_DECODERS, 2 * loading.decoders)
        yield Change(
            f"{more} decoders instead of {loading.decoders}",
            "storage",
            facts.saved_by_loading(loading.decoders / more, of="storage"),
            "model",
            "waiting takes no core, so more clips can wait at a time; no gain where the bandwidth "
            "itself is used up",
            flags={"data.workers": more},
        )


def _decoding(facts: Facts, loading: Loading) -> Iterator[Change]:
    data = facts.config.data
    free = floor(facts.idle_cores + 0.3)
    more = min(_MOST_DECODERS, loading.decoders + free)
    if more > loading.decoders and loading.rest_share >= 0.5:
        yield Change(
            f"{more} decoders instead of {loading.decoders}",
            "decode",
            facts.saved_by_loading(loading.decoders / more, of="decode"),
            "model",
            f"{facts.idle_cores:.1f} cores had nothing to do while training went on",
            flags={"data.workers": more},
        )
    batch = facts.config.optim.batch_size // (facts.config.optim.accumulate * facts.world)
    if data.crops == 1 and batch % (2 * data.clips) == 0:
        cost = loading.cost
        shared = 1 - cost.scale_s / cost.busy_s if cost.busy_s > 0 else 1.0
        yield Change(
            "2 crops of each decoded clip",
            "decode",
            facts.saved_by_loading(1 - shared / 2, of="decode"),
            "model",
            "half the clips are read and decoded, all are cropped (repeated augmentation, "
            "arXiv 1901.09335); a batch then holds each video twice",
            flags={"data.crops": 2},
            learns=True,
        )
    yield from _aligning(facts, loading)
    if loading.mode == "threads":
        yield Change(
            "decode in processes of their own",
            "decode",
            None,
            "model",
            "threads of the training process wait for its interpreter's lock",
            flags={"data.mode": "processes"},
        )
    codec = "" if facts.stored is None else facts.stored.codec
    if facts.device == "cuda" and loading.mode != "nvdec" and codec in ("h264", "hevc"):
        yield Change(
            "let the GPU decode", "decode", None, "model",
            "its decoder works beside its cores (extra [gpu-decode])",
            flags={"data.mode": "nvdec"},
        )  # fmt: skip


def _aligning(facts: Facts, loading: Loading) -> Iterator[Change]:
    clip, stored = facts.config.clip, facts.stored
    if stored is None or stored.profile is None or clip.align or clip.sampling != "dense":
        return
    profile = own_profile(stored)
    if profile.name != "layered" or clip.fps is not None or clip.stride % profile.stride:
        return
    more = unaligned(profile, ClipShape(clip.decoded_frames, clip.stride))
    part = loading.cost.decode_s / loading.cost.busy_s if loading.cost.busy_s > 0 else 0.0
    yield Change(
        "start clips at the pack's reference frames",
        "decode",
        facts.saved_by_loading(1 - (1 - 1 / more) * part, of="decode"),
        "model",
        f"clips that start anywhere decode {more:.2g} times as many frames, by the packet plan",
        flags={"clip.align": True},
        learns=True,
    )


def unaligned(profile: Profile, shape: ClipShape) -> float:
    """How many times as many frames clips decode that start anywhere in a layered GOP."""
    gop = profile.gop
    span = ceil((gop + shape.span) / gop)
    table = gop_table(profile.stride, gop, gop * span)

    def fed(start: int) -> int:
        frames = start + shape.stride * np.arange(shape.frames)
        return sum(len(run) for run in packets_to_feed(table, frames))

    aligned = [fed(start) for start in range(0, gop, profile.stride)]
    return float(np.mean([fed(start) for start in range(gop)]) / np.mean(aligned))


def _copying(facts: Facts) -> Iterator[Change]:
    speed, held = facts.config.speed, facts.stage("h2d")
    if facts.device != "cuda":
        return  # a CPU makes floats of pictures where it trains: there is no copy to speed up
    if not speed.side_stream:
        yield Change(
            "copy the next batch beside the step", "h2d", held, "model",
            "a copy on a stream of its own overlaps with kernels",
            flags={"speed.side_stream": True},
        )  # fmt: skip
    if not speed.pinned:
        yield Change(
            "decode into page-locked memory", "h2d", held, "model",
            "a GPU copies it by itself, so that copies overlap with kernels",
            flags={"speed.pinned": True},
        )  # fmt: skip
