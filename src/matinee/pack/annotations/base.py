"""What every annotation reader returns, and what they share."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from matinee.errors import AnnotationError

# Files that lie beside videos and claim nothing: listed, but no reason to fail.
_BYSTANDERS = {
    ".txt", ".md", ".rst", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".toml",
    ".html", ".pdf", ".srt", ".vtt", ".sh", ".py", ".log", ".parquet", ".npy", ".npz", ".pkl",
    ".tar", ".gz", ".zip",
}  # fmt: skip


@dataclass(frozen=True)
class VideoFile:
    """A file to pack. `id` is a relative path without `..`: the name of the video in the pack."""

    id: str
    path: Path


@dataclass(frozen=True)
class Sample:
    """One training sample: a span of a video and what is said about it.

    `start`, `end` in seconds, None for the video's own ends; `extra` holds further columns.
    """

    id: str
    video: str
    label: str | None = None
    split: str | None = None
    start: float | None = None
    end: float | None = None
    text: str | None = None
    extra: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Annotations:
    """Videos, samples, and files that were seen but are no candidates (path, reason)."""

    videos: tuple[VideoFile, ...]
    samples: tuple[Sample, ...]
    bystanders: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        ids = [video.id for video in self.videos]
        if len(set(ids)) < len(ids):
            raise AnnotationError(f"two videos have the id {_twice(ids)!r}")
        for name in ids:
            path = PurePosixPath(name)
            if not name or path.is_absolute() or ".." in path.parts:
                raise AnnotationError(f"video id {name!r}: expected a relative path without '..'")
        samples = [sample.id for sample in self.samples]
        if len(set(samples)) < len(samples):
            raise AnnotationError(f"two samples have the id {_twice(samples)!r}")
        unknown = {sample.video for sample in self.samples} - set(ids)
        if unknown:
            raise AnnotationError(f"a sample is of video {min(unknown)!r}, which is not given")


def _twice(names: list[str]) -> str:
    return next(name for name, count in Counter(names).items() if count > 1)


def bystander(path: Path) -> str | None:
    """Why a file is no candidate by its name, or None if it should be tried as a video."""
    if path.name.startswith("."):
        return "a hidden file"
    if path.suffix.lower() in _BYSTANDERS or not path.suffix:
        return "not a video by its name"
    return None


def video_id(path: Path, root: Path) -> str:
    """The path below `root`; for a file elsewhere its whole path. Relative, without `..`.

    Links are not followed: two names of one file are two videos.
    """
    whole = PurePosixPath(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links
    try:
        return str(whole.relative_to(os.path.abspath(root)))  # noqa: PTH100
    except ValueError:
        return str(whole.relative_to(whole.anchor))


def hold_out(samples: Iterable[Sample], fraction: float) -> tuple[list[Sample], str]:
    """Give samples without a split one: the last videos of each class, by name, become "val".

    Whole videos are held out, and neighbours by name stay together, because cuts of one recording
    usually follow one another. Returns the samples and a sentence about what was done.
    """
    samples = list(samples)
    videos: dict[str, set[str]] = defaultdict(set)
    for sample in samples:
        videos[sample.label or ""].add(sample.video)
    held: set[str] = set()
    for names in map(sorted, videos.values()):
        count = round(len(names) * fraction)
        held.update(names[len(names) - count :] if count else [])
    done = [replace(sample, split="val" if sample.video in held else "train") for sample in samples]
    note = (
        f"no splits given: the last {fraction:.0%} of each class's videos, by name, are held out "
        f"as 'val' ({len(held)} of {len({s.video for s in samples})}); --val-fraction 0 keeps all "
        "for training"
    )
    return done, note
