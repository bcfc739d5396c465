"""What a clip costs: milliseconds of decoding and bytes a frame, predicted from measured costs.

# Note [Cost model]
A profile fixes the structure of its GOPs, so the frames that a clip makes the decoder decode are
counted exactly, by the reader's own packet plan on the packet table that the encoder will make. The
rest is measured by `benchmarks/profiles.py` and kept in `costs.json`: time for each packet, each
pixel of a decoded frame (a keyframe, a reference, a disposable frame), each byte of it, each pixel
that is cropped and scaled, and each run and clip; and bits a pixel of each kind of frame. Times are
milliseconds of one core of the machine named there: on another machine all of them change by about
the same factor, so that their order and their ratios stay. Bits are those of the footage named
there; other footage needs more or fewer by a factor that `pack/choose.py` finds with one encode.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import ceil, lcm, log2
from typing import TYPE_CHECKING, Any

import numpy as np

from matinee.errors import ConfigError
from matinee.media.packets import PacketTable
from matinee.media.plan import packets_to_feed
from matinee.pack.profiles import Profile

if TYPE_CHECKING:
    from numpy.typing import NDArray

KINDS = ("key", "reference", "disposable")
MAX_SPAN = 10_000  # frames of a clip, from its first to its last
_STARTS = 128  # dense clips over which the mean is taken, at most
_DRAWS = 64  # uniform clips over which it is taken; fewer of many frames


@dataclass(frozen=True)
class ClipShape:
    """`frames` frames, `stride` apart from an aligned start; stride 0: one from each segment."""

    frames: int
    stride: int

    @property
    def span(self) -> int:
        """Frames from the first to the last; of a uniform clip, at least."""
        return (self.frames - 1) * max(1, self.stride) + 1

    def __str__(self) -> str:
        return f"{self.frames}x{self.stride or 'uniform'}"


def parse_clip(text: str, *, flag: str = "--for-clip") -> ClipShape:
    """`16x4` (dense: frames x stride) or `8xuniform` (one frame from each of 8 segments).

    Raises:
        ConfigError: anything else, or a clip longer than any is trained with.
    """
    found = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,2}|uniform)", text.strip().lower())
    if found is None:
        raise ConfigError(
            f"{flag} {text}: say frames x stride, as 16x4, or 8xuniform for one frame from "
            "each of 8 segments"
        )
    clip = ClipShape(int(found[1]), 0 if found[2] == "uniform" else int(found[2]))
    if clip.span > MAX_SPAN:
        raise ConfigError(
            f"{flag} {text}: spans {clip.span:,} frames, at most {MAX_SPAN:,} are estimated"
        )
    return clip


def gop_table(spacing: int, gop: int, num_frames: int) -> PacketTable:
    """The packet table of a chunk whose references lie `spacing` apart; every size is 1.

    As the encoder orders it: a reference is stored before the frames shown between it and the
    reference before. The last frame of a GOP is a reference wherever it falls.
    """
    order: list[int] = []
    kept: list[int] = []  # frames that others refer to
    for start in range(0, num_frames, gop):
        end = min(start + gop, num_frames)
        order.append(start)
        kept.append(start)
        for before in range(start, end - 1, spacing):
            reference = min(before + spacing, end - 1)
            order += [reference, *range(before + 1, reference)]
            kept.append(reference)
    frame = np.array(order, dtype=np.int64)
    count = np.arange(num_frames, dtype=np.int64)
    return PacketTable(
        offset=count,
        size=np.ones(num_frames, np.int64),
        frame=frame,
        crc=np.zeros(num_frames, np.uint32),
        key=frame % gop == 0,
        disposable=~np.isin(frame, kept),
    )


@dataclass(frozen=True)
class Fed:
    """Means over clips: packets of each kind that are decoded, and the runs they come in."""

    packets: Mapping[str, float]
    runs: float

    @property
    def total(self) -> float:
        return sum(self.packets.values())


def packets_fed(profile: Profile, clip: ClipShape, *, video_frames: int = 300) -> Fed:
    """What a clip makes the decoder decode, by the packet plan, as the mean over where it starts.

    `video_frames` is the length over which a uniform clip spreads; 10 s at 30 frames/s by default.
    """
    # Where segments are many times longer than GOPs, longer ones make no difference.
    spread = min(video_frames, max(MAX_SPAN, 4 * profile.gop * clip.frames))
    return _fed(profile.stride, profile.gop, clip, 0 if clip.stride else spread)


@cache
def _fed(spacing: int, gop: int, clip: ClipShape, video_frames: int) -> Fed:
    clips = list(_clips(gop, clip, video_frames))
    last = max(int(frames[-1]) for frames in clips)
    table = gop_table(spacing, gop, gop * ceil((last + 1) / gop))
    packets = dict.fromkeys(KINDS, 0.0)
    runs = 0
    for frames in clips:
        for run in packets_to_feed(table, frames):
            key, disposable = int(table.key[run].sum()), int(table.disposable[run].sum())
            packets["key"] += key
            packets["disposable"] += disposable
            packets["reference"] += len(run) - key - disposable
            runs += 1
    means: dict[str, float] = {kind: packets[kind] / len(clips) for kind in KINDS}
    return Fed(means, runs / len(clips))


def _clips(gop: int, clip: ClipShape, video_frames: int) -> Iterator[NDArray[np.int64]]:
    """Aligned starts of a dense clip in a period of the structure; draws of a uniform one."""
    if clip.stride:
        starts = range(0, lcm(gop, clip.stride), clip.stride)
        for start in starts[:: ceil(len(starts) / _STARTS)]:
            yield start % gop + clip.stride * np.arange(clip.frames)  # all GOPs are alike
        return
    rng = np.random.default_rng(0)
    for _ in range(max(4, min(_DRAWS, 4096 // clip.frames))):
        place = np.arange(clip.frames) + rng.random(clip.frames)
        yield np.floor(place * (video_frames / clip.frames)).astype(np.int64)


@dataclass(frozen=True)
class Estimate:
    """`bytes_per_frame` stored; `ms_per_clip` on one core of the reference machine."""

    bytes_per_frame: float
    ms_per_clip: float
    fed: Fed


@dataclass(frozen=True)
class Costs:
    """What was measured, by profile name; see Note [Cost model] and `unit` in costs.json."""

    decode: Mapping[str, Mapping[str, float]]
    convert: Mapping[str, float]
    bits: Mapping[tuple[str, int, int], Mapping[str, float]]
    machine: Mapping[str, Any]

    def structures(self) -> list[tuple[str, int, int]]:
        """Every (profile, stride, GOP length) whose bits were measured."""
        return list(self.bits)

    def bits_of(self, name: str, stride: int, gop: int) -> Mapping[str, float] | None:
        """Bits a pixel of each kind of frame; None where they are not known.

        Of layered structures between (or beyond) two measured strides, with as many references a
        GOP: on the line through both over the logarithm of the stride.
        """
        known = self.bits.get((name, stride, gop))
        if known is not None or name != "layered" or gop % stride:
            return known
        per_gop = gop // stride
        near = sorted(
            (abs(log2(at / stride)), at)
            for kind, at, length in self.bits
            if kind == name and length == at * per_gop
        )
        if len(near) < 2:
            return None
        low, high = sorted(at for _, at in near[:2])
        share = log2(stride / low) / log2(high / low)
        below, above = (self.bits[name, at, at * per_gop] for at in (low, high))
        return {kind: max(0.0, below[kind] + share * (above[kind] - below[kind])) for kind in KINDS}


@cache
def stored_costs() -> Costs:
    """The measured costs that come with the package."""
    return read_costs(json.loads((files("matinee.pack") / "costs.json").read_text()))


def read_costs(content: Mapping[str, Any]) -> Costs:
    bits = {(row["profile"], row["stride"], row["gop"]): row["bits"] for row in content["bits"]}
    return Costs(content["decode"], content["convert"], bits, content["machine"])


def estimate(
    profile: Profile,
    clip: ClipShape,
    size: tuple[int, int],
    *,
    content: float = 1.0,
    video_frames: int = 300,
    lengths: Sequence[int] | None = None,
    costs: Costs | None = None,
) -> Estimate:
    """Bytes a frame and milliseconds a clip of a profile.

    Args:
        size: (width, height) of the stored pictures.
        content: bytes of the footage over those of the footage that the costs were measured on.
        video_frames: see `packets_fed`.
        lengths: frames of each chunk, of which the last GOP may be cut short; None: whole GOPs.

    Raises:
        ConfigError: a structure that was not measured, nor lies between measured ones.
    """
    costs = costs or stored_costs()
    bits = costs.bits_of(profile.name, profile.stride, profile.gop)
    if bits is None:
        raise ConfigError(
            f"the {profile.name} profile with stride {profile.stride} and keyframes every "
            f"{profile.gop} frames was not measured, so its cost is not known"
        )
    fed = packets_fed(profile, clip, video_frames=video_frames)
    pixels = size[0] * size[1]
    sizes = {kind: bits[kind] / 8 * pixels * content for kind in KINDS}
    per = costs.decode[profile.name]
    micros = per["run"] * fed.runs
    for kind, count in fed.packets.items():
        scaled = per[kind] * pixels + per["byte"] * sizes[kind]
        micros += count * (per["packet"] + scaled / 1000)
    micros += costs.convert["clip"]
    micros += clip.frames * (costs.convert["frame"] + costs.convert["pixel"] * pixels / 1000)
    stored = _mean_bytes(profile, sizes, lengths or [profile.gop])
    return Estimate(stored, micros / 1000, fed)


def _mean_bytes(profile: Profile, sizes: Mapping[str, float], lengths: Sequence[int]) -> float:
    total = 0.0
    for length in lengths:
        table = gop_table(profile.stride, profile.gop, length)
        keys, disposable = int(table.key.sum()), int(table.disposable.sum())
        total += keys * sizes["key"] + disposable * sizes["disposable"]
        total += (length - keys - disposable) * sizes["reference"]
    return total / sum(lengths)
