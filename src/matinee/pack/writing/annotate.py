"""Give a pack other samples, and leave its video alone."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from matinee.errors import PackError
from matinee.files import naming, write_whole
from matinee.pack.annotations import Annotations
from matinee.pack.annotations.finder import VideoFinder
from matinee.pack.format import (
    CHUNKS,
    FAILURES,
    MANIFEST,
    SAMPLE_TABLE,
    VERSION,
    part_name,
    read_manifest,
    replaced_name,
    replacement,
)
from matinee.pack.reading.table_file import TableFile
from matinee.pack.tables import write_table
from matinee.pack.writing.finish import (
    Failure,
    classes_of,
    fit_samples,
    read_failures,
    write_failures,
)

_NOT_HELD = "is not in the pack"
_OF_SAMPLE = re.compile(r" \(sample .+\)\Z", re.DOTALL)


@dataclass(frozen=True)
class AnnotateReport:
    """What `annotate_pack` did. `unused` counts videos of the pack that have no sample now;
    `refused` are samples, or videos with all of theirs, that are not in the pack.
    """

    out: Path
    samples: int
    classes: int
    videos: int
    unused: int
    refused: tuple[Failure, ...]
    failures_file: str

    def counts(self) -> dict[str, int]:
        """The report in numbers, for JSON."""
        return {
            "samples": self.samples,
            "classes": self.classes,
            "videos": self.videos,
            "unused_videos": self.unused,
            "refused": len(self.refused),
        }


def annotate_pack(
    pack: str | Path, read: Callable[[VideoFinder], Annotations]
) -> tuple[AnnotateReport, Annotations]:
    """Replace the samples, classes and failures of a pack; see Note [Replaced samples].

    Videos are those of the pack: a name in the annotations fits an id as it would have fitted the
    file's path below the folder that was packed. What was refused when the pack was made stays in
    the list of failures, samples apart.

    Args:
        read: makes the annotations, given where the videos are: `read_annotations` with a kind.

    Raises:
        PackError: no such pack, another process is at it, or no sample fits a video.
        AnnotationError: what `read` raises.
    """
    out = Path(pack).resolve()
    with _alone(out):
        meta = read_manifest(out)
        durations = _durations(out)
        found = read(VideoFinder(out, durations))
        samples, beyond = fit_samples(found.rows.table, durations)
        absent = [
            Failure(video.id, "refused", _NOT_HELD)
            for video in found.videos
            if video.id not in durations
        ]
        unusable = [Failure(what, "refused", reason) for what, reason in found.refused]
        refused = absent + unusable + beyond
        if not samples.num_rows:
            why = f"; the first refusal: {refused[0].path} {refused[0].reason}" if refused else ""
            raise PackError(f"{out}: no sample fits a video of the pack{why}")
        number = 1 + max(replacement(entry.name) for entry in out.iterdir())
        named = {part: replaced_name(part, number) for part in (SAMPLE_TABLE, FAILURES)}
        earlier = [f for f in read_failures(out) if _is_of_video(f)]
        with naming(out):
            write_table(out / named[SAMPLE_TABLE], samples)
            write_failures(out / named[FAILURES], earlier + refused)
            classes = classes_of(samples)
            written = _manifest(meta, named, samples.num_rows, classes, earlier + refused)
            write_whole(out / MANIFEST, (json.dumps(written, indent=1) + "\n").encode())
            _remove_older(out, {part: part_name(meta, part) for part in named}, named)
    used = len(samples.column("video").unique())
    report = AnnotateReport(
        out=out,
        samples=samples.num_rows,
        classes=len(classes),
        videos=used,
        unused=len(durations) - used,
        refused=tuple(refused),
        failures_file=named[FAILURES],
    )
    return report, found


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the folder; the system lets go of it when this process ends, however it does."""
    try:
        handle = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise PackError(f"{out} is no pack: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise PackError(f"another process is annotating {out}") from None
    finally:
        os.close(handle)


def _durations(out: Path) -> dict[str, float]:
    """Seconds of each video, by id."""
    table = TableFile(out / "chunks.parquet", CHUNKS)
    video = table.coded("video")
    frames, num, den = (table.numbers(name) for name in ("frames", "fps_num", "fps_den"))
    if len(num) and min(num.min(), den.min()) < 1:
        raise PackError(f"{out}: impossible values among the chunks; the pack is damaged")
    seconds = np.bincount(video.codes, frames * (den / num), len(video.words))
    return dict(zip(video.words.to_pylist(), seconds.tolist(), strict=True))


def _is_of_video(failure: Failure) -> bool:
    """Of a file that was refused or ignored when the pack was made, not of a sample since."""
    return failure.reason != _NOT_HELD and not _OF_SAMPLE.search(failure.path)


def _manifest(
    meta: dict[str, Any],
    named: dict[str, str],
    samples: int,
    classes: list[str],
    failures: list[Failure],
) -> dict[str, Any]:
    """The pack is no longer what a run of `matinee pack` would make: it has no source digest."""
    counts = {
        "samples": samples,
        "refused": sum(failure.kind == "refused" for failure in failures),
        "ignored": sum(failure.kind == "ignored" for failure in failures),
    }
    return {
        **meta,
        "version": VERSION,
        "classes": classes,
        "source_digest": None,
        "report": {**meta["report"], **counts},
        "files": named,
    }


def _remove_older(out: Path, before: dict[str, str], now: dict[str, str]) -> None:
    """All replacements, and first tables, but those of now and before."""
    kept = {*before.values(), *now.values()}
    for entry in list(out.iterdir()):
        is_part = entry.name in before or replacement(entry.name)
        if is_part and entry.name not in kept:
            entry.unlink(missing_ok=True)
