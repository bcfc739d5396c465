"""Index videos in place: the tables of a pack over existing files, without re-encoding."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from matinee.errors import ConfigError, MatineeError, PackError
from matinee.media.source import file_span, stamp_of
from matinee.pack.annotations import Annotations, VideoFile
from matinee.pack.tables import CodecRows
from matinee.pack.writing.existing import remove_pack
from matinee.pack.writing.finish import Failure, PackReport, finish_pack
from matinee.pack.writing.index_job import Indexed
from matinee.workers import Result, WorkerPool

# Signals by which a process ends through a fault of its own, not by someone's wish.
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


def index_videos(
    out: str | Path,
    annotations: Annotations,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    on_progress: Callable[[int, int, float], None] | None = None,
) -> PackReport:
    """Make a pack whose chunks are the original files, one chunk a file.

    A file that would be shown otherwise than it is stored (turned, anamorphic, interlaced, unevenly
    spaced) is refused: `matinee pack` normalises such files. So is one whose frames are not plain
    byte ranges, or cannot be reached exactly from its keyframes.

    Args:
        workers: processes, one video each at a time; the number of usable cores when None.
        on_progress: called with (videos done, videos in all, seconds of video indexed).

    Raises:
        PackError: `out` exists, or nothing can be indexed.
    """
    out = Path(out).resolve()
    if overwrite:
        remove_pack(out)
    if out.exists() and any(out.iterdir()):
        raise PackError(f"{out} exists; choose another --out, or replace it with --overwrite")
    # Made aside and renamed: an index is there whole or not at all.
    aside = out.with_name(f".{out.name}.making")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        report = _make(aside, annotations, workers, on_progress)
        aside.replace(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return replace(report, out=out)


def _make(
    out: Path,
    annotations: Annotations,
    workers: int | None,
    on_progress: Callable[[int, int, float], None] | None,
) -> PackReport:
    files: list[dict[str, Any]] = [{"path": "tables.bin", "size": 0, "mtime_ns": 0}]
    chunks: list[dict[str, Any]] = []
    numbers: dict[Path, int] = {}  # a tar holds many videos
    codecs = CodecRows()
    durations: dict[str, float] = {}
    refused: list[Failure] = []
    with (out / "tables.bin").open("wb") as tables:
        for video, found in _looked_at(annotations.videos, workers, on_progress):
            if not isinstance(found, str) and stamp_of(video.path) != found.stamp:
                found = "changed while it was indexed: index it again"  # noqa: PLW2901
            if isinstance(found, str):
                refused.append(Failure(str(video.path), "refused", found))
                continue
            file, offset, size = file_span(video.path)
            chunks.append(
                {
                    "video": video.id,
                    "start_frame": 0,
                    "start_s": 0.0,
                    "frames": found.frames,
                    "fps_num": found.fps.numerator,
                    "fps_den": found.fps.denominator,
                    "codec": codecs.number(found.format),
                    "file": _number(files, numbers, file),
                    "offset": offset,
                    "size": size,
                    "table_file": 0,
                    "table_offset": tables.tell(),
                    "table_size": len(found.table),
                }
            )
            tables.write(found.table)
            durations[video.id] = found.frames / float(found.fps)
        files[0]["size"] = tables.tell()
    return finish_pack(
        out,
        annotations,
        durations=durations,
        refused=refused,
        files=files,
        chunks=chunks,
        codecs=codecs.rows,
        size=sum(row["size"] for row in chunks),
        profile=None,
        source_digest=None,
    )


def _looked_at(
    videos: tuple[VideoFile, ...],
    workers: int | None,
    on_progress: Callable[[int, int, float], None] | None,
) -> Iterator[tuple[VideoFile, Indexed | str]]:
    """Every video in the order given, whichever is ready first, so that an index is one bytes."""
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers {workers}: at least 1")
    ready: dict[int, Indexed | str] = {}
    given, done, seconds = 0, 0, 0.0
    if not videos:
        return
    count = min(workers or len(os.sched_getaffinity(0)), len(videos))
    with WorkerPool(count, "matinee.pack.writing.index_job:IndexJob") as pool:
        for number, video in enumerate(videos):
            pool.submit(number, (video.id, video.path))
        while given < len(videos):
            if on_progress:
                on_progress(done, len(videos), seconds)
            for result in pool.results(restart=True):
                found = _outcome(result, videos)
                ready[result.job] = found
                done += 1
                seconds += 0 if isinstance(found, str) else found.frames / float(found.fps)
            while given in ready:
                yield videos[given], ready.pop(given)
                given += 1
    if on_progress:
        on_progress(done, len(videos), seconds)


def _outcome(result: Result, videos: tuple[VideoFile, ...]) -> Indexed | str:
    if result.died:
        if result.job < 0 or result.signal not in _CRASHES:
            doing = f" on {videos[result.job].path}" if result.job >= 0 else ""
            raise MatineeError(f"an indexing worker was ended{doing}: {result.died}")
        # A file that brings the decoder down is refused, like any other bad file.
        return f"the decoder broke down on it: {result.died}"
    if result.error is not None:
        raise MatineeError(
            f"indexing {videos[result.job].path} failed in matinee itself: "
            f"{result.error!r}\n{result.trace}"
        )
    outcome: Indexed | str = result.value
    return outcome


def _number(files: list[dict[str, Any]], numbers: dict[Path, int], file: Path) -> int:
    """The row of a file in the table of files, added if it is new."""
    if file not in numbers:
        numbers[file] = len(files)
        info = file.stat()
        row = {"path": str(file.resolve()), "size": info.st_size, "mtime_ns": info.st_mtime_ns}
        files.append(row)
    return numbers[file]
