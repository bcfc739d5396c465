"""The clips that loaders read in turns, and files of them that other readers can open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from matinee.data.clips import ClipSpec, plan_training_clip
from matinee.data.random import generator
from matinee.errors import ConfigError
from matinee.media.decode import Box
from matinee.media.plan import packets_to_feed
from matinee.pack.cost import ClipShape, parse_clip
from matinee.pack.reading.clip import ClipPart, ClipReader, Located
from matinee.pack.reading.reader import Pack

_DRAWS = 20  # tries for each clip


@dataclass(frozen=True)
class Clip:
    """One clip. `frames` of the file of its only chunk, in display order; None where it has several
    chunks, which only a pack's reader can join. `num_bytes` of packets that are decoded.
    """

    parts: tuple[ClipPart, ...]
    box: Box
    frames: tuple[int, ...] | None
    num_bytes: int
    fps: float

    @property
    def chunk(self) -> Located:
        """Of its first frame."""
        return self.parts[0].chunk


def parse_shape(text: str) -> ClipShape:
    """The value of --clip.

    Raises:
        ConfigError: it is none.
    """
    return parse_clip(text, flag="--clip")


def clip_spec(shape: ClipShape, size: int) -> ClipSpec:
    """How clips are drawn: random-resized crops of half the picture or more."""
    dense = shape.stride > 0
    return ClipSpec(
        frames=shape.frames, stride=max(1, shape.stride), size=size, scale=(0.5, 1.0),
        sampling="dense" if dense else "uniform",
    )  # fmt: skip


def draw_clips(pack: Pack, spec: ClipSpec, count: int) -> list[Clip]:
    """Random clips, of one chunk if there are any such; never one that starts over.

    Raises:
        ConfigError: every sample that was looked at is shorter than a clip.
    """
    reader = ClipReader(pack.formats)
    whole: list[Clip] = []
    spanning: list[Clip] = []
    for number in range(_DRAWS * count):
        rng = generator(0, 0, number, "bench loader")
        info = pack.info(int(rng.integers(len(pack))))
        plan = plan_training_clip(info, spec, rng)
        if any(b <= a for a, b in pairwise(plan.frames)):
            continue  # started over, as short samples do
        parts = pack.locate(plan.video, plan.frames)
        frames = parts[0].frames if len(parts) == 1 else None
        clip = Clip(parts, plan.box, frames, _read_bytes(reader, parts), float(info.fps))
        (spanning if frames is None else whole).append(clip)
        if len(whole) == count:
            break
    reader.close()
    found = whole if len(whole) >= count // 2 else whole + spanning
    if not found:
        raise ConfigError(
            f"{pack.path}: the samples are shorter than clips of {spec.frames} frames at stride "
            f"{spec.stride}: choose a shorter --clip, such as 8x2"
        )
    return found[:count]


def _read_bytes(reader: ClipReader, parts: Sequence[ClipPart]) -> int:
    total = 0
    for part in parts:
        table = reader.table(part.chunk)
        packets = [p for run in packets_to_feed(table, part.frames) for p in run]
        total += int(table.size[packets].sum())
    return total


def write_files(pack: Pack, clips: Sequence[Clip], folder: Path) -> dict[Located, Path]:
    """A file of each chunk: the original itself where it is one, else a copy in `folder`."""
    reader = ClipReader(pack.formats)
    files: dict[Located, Path] = {}
    for chunk in {clip.chunk: None for clip in clips if clip.frames is not None}:
        if chunk.remote is None and (chunk.offset, chunk.size) == (0, chunk.file_bytes):
            files[chunk] = Path(chunk.file)
            continue
        files[chunk] = folder / f"{len(files):04}.mp4"
        files[chunk].write_bytes(reader.chunk(chunk))
    reader.close()
    return files
