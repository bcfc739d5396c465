"""What every annotation reader returns, and what they share."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow.compute as pc

from matinee.errors import AnnotationError
from matinee.media.source import Source
from matinee.pack.annotations.samples import Sample, Samples

# Files that lie beside videos and claim nothing: listed, but no reason to fail.
_BYSTANDERS = {
    ".txt", ".md", ".rst", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".toml",
    ".html", ".pdf", ".srt", ".vtt", ".sh", ".py", ".log", ".parquet", ".npy", ".npz", ".pkl",
    ".tar", ".gz", ".zip",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class VideoFile:
    """A video to pack, and where it is read from: see Note [Sources].

    `id` is a relative path without `..`: the name of the video in the pack.
    """

    id: str
    path: Source


@dataclass(frozen=True)
class Annotations:
    """Videos and samples; files that were seen but are no candidates (path, reason); entries that
    cannot be used (what, reason); and sentences about what was done.

    `samples` may be given as any sequence of `Sample`; `rows` are the same as columns.
    """

    videos: tuple[VideoFile, ...]
    samples: Sequence[Sample]
    bystanders: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        self._refuse_names()
        object.__setattr__(self, "samples", Samples.of(self.samples))
        ids = [video.id for video in self.videos]
        if len(set(ids)) < len(ids):
            raise AnnotationError(f"two videos have the id {_twice(ids)!r}")
        for name in ids:
            path = PurePosixPath(name)
            if not name or path.is_absolute() or ".." in path.parts:
                raise AnnotationError(f"video id {name!r}: expected a relative path without '..'")
        samples = self.rows.table.column("sample")
        if pc.count_distinct(samples).as_py() < len(samples):
            raise AnnotationError(f"two samples have the id {_twice(samples.to_pylist())!r}")
        used = set(self.rows.table.column("video").unique().to_pylist())
        unknown = used - set(ids)
        if unknown:
            raise AnnotationError(f"a sample is of video {min(unknown)!r}, which is not given")

    def _refuse_names(self) -> None:
        """File systems allow names that are no text; tables do not."""
        bad = {video.id: video for video in self.videos if not is_text(video.id)}
        if bad:
            refused = tuple((str(v.path), "has a name that is not UTF-8") for v in bad.values())
            held = tuple(sample for sample in self.samples if sample.video not in bad)
            object.__setattr__(self, "videos", tuple(v for v in self.videos if v.id not in bad))
            object.__setattr__(self, "samples", held)
            object.__setattr__(self, "refused", self.refused + refused)

    @property
    def rows(self) -> Samples:
        """The samples, by columns."""
        assert isinstance(self.samples, Samples)
        return self.samples


def is_text(name: str) -> bool:
    """Whether a name can be written as UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _twice(names: list[str]) -> str:
    return next(name for name, count in Counter(names).items() if count > 1)


def bystander(path: Path | PurePosixPath) -> str | None:
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


def check_columns(names: Sequence[str], where: str) -> None:
    """Further columns of a pack may not be called like its own.

    Raises:
        AnnotationError: one is; or a name occurs twice.
    """
    if len(set(names)) < len(names):
        raise AnnotationError(f"{where} has the column {_twice(list(names))!r} twice")
    clash = {"sample", "video", "start_s", "end_s"} & set(names)
    if clash:
        raise AnnotationError(
            f"{where}: the column name {min(clash)!r} is taken by the pack itself; rename it"
        )
