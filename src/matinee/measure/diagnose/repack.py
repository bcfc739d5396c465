"""A few of a pack's videos packed in another way, in a temporary folder, to time their decoding."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np

from matinee.data.clips import ClipSpec
from matinee.data.loader import ClipLoader
from matinee.errors import ConfigError
from matinee.measure.arms import take_turns
from matinee.pack.annotations.base import Annotations, VideoFile
from matinee.pack.annotations.samples import Sample
from matinee.pack.mixture import Mixture
from matinee.pack.profiles import Profile, make_profile
from matinee.pack.reading.clip import ClipReader, Located
from matinee.pack.reading.reader import Pack
from matinee.pack.writing.writer import write_pack
from matinee.training.setup import Setup

LIMIT_S = 60.0
"""Seconds that encoding may take."""
_VIDEOS, _CLIPS = 24, 16
_FRAMES = 600  # of a chunk; the rest of a longer one, such as a film that was indexed, is left out
_REORDERED = 32  # packets after one, among which some may be shown before it
_FAR = 256 << 20  # bytes of a chunk that a trial reads over a network


@dataclass(frozen=True)
class Times:
    """Seconds a clip that a decoder works, in each round, without waiting for storage."""

    before_s: Sequence[float]
    after_s: Sequence[float]
    videos: int


@dataclass(frozen=True)
class _Chunk:
    """A chunk that a training sample begins in, to be a video of its own."""

    located: Located
    codec: int


def time_repacked(
    setup: Setup,
    settings: Mapping[str, Any],
    *,
    rounds: int,
    on_turn: Callable[[int], None] = lambda turn: None,
) -> Times:
    """Decode clips of some chunks as they are and as a profile of `settings` stores them.

    Both by one thread of this process, in turns.

    Raises:
        ConfigError: an image set, a mixture, a chunk that cannot be cut or is far away and large,
            or encoding would take longer than `LIMIT_S`.
    """
    pack = setup.pack
    if not isinstance(pack, Pack):
        kind = "a mixture" if isinstance(pack, Mixture) else "an image set"
        raise ConfigError(f"{pack.path} is {kind}: re-packing is tried on single packs of videos")
    chunks = _chunks(pack, setup)
    clip = replace(setup.config.clip, short="loop")  # a chunk may be shorter than its video was
    with tempfile.TemporaryDirectory(prefix="matinee-") as name:
        folder = Path(name)
        videos = _write(pack, chunks, folder / "videos")
        after, count = _packed(videos, make_profile(**settings), folder)
        # What is compared lies in the same chunks: as they are, without encoding, and anew.
        before = _indexed(videos[:count], folder / "before.pack")
        with _loader(before, clip) as old, _loader(after, clip) as new:
            turns = take_turns(
                {"before": lambda: _time(old), "after": lambda: _time(new)}, rounds,
                on_turn=lambda done, _: on_turn(min(done, 2 * rounds)),
            )  # fmt: skip
    return Times(turns.values["before"], turns.values["after"], count)


def _chunks(pack: Pack, setup: Setup) -> list[_Chunk]:
    """Of training samples all over the split, each chunk once."""
    rows = pack.select(setup.splits.train)
    found: dict[tuple[str, int], _Chunk] = {}
    for row in rows[:: max(1, len(rows) // _VIDEOS)][:_VIDEOS]:
        info = pack.info(int(row))
        located = pack.locate(info.video, [info.first_frame])[0].chunk
        found.setdefault((located.file, located.offset), _Chunk(located, info.codec))
    return list(found.values())


def _write(pack: Pack, chunks: Sequence[_Chunk], folder: Path) -> tuple[VideoFile, ...]:
    """Each chunk, or the begin of it, is a complete video file.

    Raises:
        ConfigError: it cannot be cut, or is far away and large.
    """
    folder.mkdir()
    reader = ClipReader(pack.formats)
    videos = []
    for number, chunk in enumerate(chunks):
        located = chunk.located
        whole = located.offset == 0 and located.size == located.file_bytes
        if whole and located.remote is None:
            path = Path(located.file)
        elif located.remote is not None and located.size > _FAR:
            raise ConfigError(
                f"a chunk of {located.file} has {located.size >> 20} MiB, more than a trial reads "
                "over a network: pack some by hand"
            )
        else:
            path = folder / f"{number}.mp4"
            path.write_bytes(reader.chunk(located))
        if located.frames > _FRAMES:
            path = _cut(path, folder / f"{number}.begin")
        videos.append(VideoFile(f"{number}.mp4", path))
    reader.close()
    return tuple(videos)


def _cut(path: Path, out: Path) -> Path:
    """The first `_FRAMES` frames of a video, or a few less, not encoded anew."""
    try:
        with av.open(str(path)) as source:
            stream = source.streams.video[0]
            packets = [p for p in islice(source.demux(stream), _FRAMES + _REORDERED) if p.size]
            kinds = source.format.name.split(",")
            kind = "mp4" if "mp4" in kinds else kinds[0]
            with av.open(str(out), "w", format=kind) as target:
                begin = target.add_stream_from_template(stream)
                for packet in packets[: _cut_at([p.pts for p in packets])]:
                    packet.stream = begin
                    target.mux(packet)
    except (av.FFmpegError, ValueError) as error:
        raise ConfigError(f"{path} cannot be cut, to pack the begin of it: {error}") from None
    return out


def _cut_at(times: Sequence[int | None]) -> int:
    """How many packets: after none of those that are kept comes one that is shown before them."""
    shown = np.array([-1 if time is None else time for time in times])
    kept = shown[:_FRAMES]
    latest = np.maximum.accumulate(kept)
    earliest = np.minimum.accumulate(shown[::-1])[::-1][1 : len(kept) + 1]
    whole = np.flatnonzero(latest[: len(earliest)] < earliest)
    return int(whole[-1]) + 1 if whole.size else len(kept)


def _annotations(videos: Sequence[VideoFile]) -> Annotations:
    samples = tuple(Sample(id=v.id, video=v.id, label="any", split="train") for v in videos)
    return Annotations(tuple(videos), samples)


def _indexed(videos: Sequence[VideoFile], out: Path) -> Pack:
    from matinee.pack.writing.index import index_videos

    index_videos(out, _annotations(videos), workers=1)
    return Pack(out)


def _packed(videos: Sequence[VideoFile], profile: Profile, folder: Path) -> tuple[Pack, int]:
    """As many as the limit allows, told by how long the first takes."""
    begin = time.perf_counter()
    write_pack(folder / "first.pack", _annotations(videos[:1]), profile, workers=1)
    first = time.perf_counter() - begin
    count = min(len(videos), int(LIMIT_S / first))
    if count < 2:
        raise ConfigError(
            f"packing one video takes {first:.0f} s, more than a trial may take: pack some by hand"
        )
    write_pack(folder / "after.pack", _annotations(videos[:count]), profile, workers=1)
    return Pack(folder / "after.pack"), count


def _loader(pack: Pack, clip: ClipSpec) -> ClipLoader:
    repeats = -(-2 * _CLIPS // len(pack))
    return ClipLoader(
        pack, split="train", clip=clip, batch_size=_CLIPS, repeats=repeats, workers=1,
        mode="threads",
    )  # fmt: skip


def _time(loader: ClipLoader) -> float:
    """Seconds a clip."""
    loader.load_state_dict(loader.state_dict())
    loader.take_costs()
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())  # those that were begun are finished, and count
    cost = loader.take_costs()
    return (cost.busy_s - cost.read_s) / max(1, cost.clips)
