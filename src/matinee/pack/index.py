"""Index videos in place: the tables of a pack over existing files, without re-encoding."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from matinee.errors import MediaError, PackError
from matinee.media.decode import ClipDecoder, frame_bytes
from matinee.media.packets import PacketTable, VideoFormat, scan_packets
from matinee.media.probe import Probe, probe
from matinee.pack.annotations import Annotations, VideoFile
from matinee.pack.finish import Failure, PackReport, finish_pack
from matinee.pack.tables import CodecRows
from matinee.pack.writer import remove_pack


def index_videos(
    out: str | Path,
    annotations: Annotations,
    *,
    overwrite: bool = False,
    on_progress: Callable[[int, int, float], None] | None = None,
) -> PackReport:
    """Make a pack whose chunks are the original files, one chunk a file.

    A file that would be shown otherwise than it is stored (turned, anamorphic, interlaced, unevenly
    spaced) is refused: `matinee pack` normalises such files.

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
        report = _make(aside, annotations, on_progress)
        aside.replace(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return replace(report, out=out)


def _make(
    out: Path,
    annotations: Annotations,
    on_progress: Callable[[int, int, float], None] | None,
) -> PackReport:
    files: list[dict[str, Any]] = [{"path": "tables.bin", "size": 0, "mtime_ns": 0}]
    chunks: list[dict[str, Any]] = []
    codecs = CodecRows()
    durations: dict[str, float] = {}
    refused: list[Failure] = []
    total = len(annotations.videos)
    with (out / "tables.bin").open("wb") as tables:
        for done, video in enumerate(annotations.videos):
            if on_progress:
                on_progress(done, total, sum(durations.values()))
            try:
                found = _look(video)
            except (MediaError, OSError, UnicodeEncodeError) as error:
                refused.append(Failure(str(video.path), "refused", _reason(error)))
                continue
            stat = video.path.stat()
            table = found.table.to_bytes()
            chunks.append(
                {
                    "video": video.id,
                    "start_frame": 0,
                    "start_s": 0.0,
                    "frames": found.table.num_frames,
                    "fps_num": found.fps.numerator,
                    "fps_den": found.fps.denominator,
                    "codec": codecs.number(found.format),
                    "file": len(files),
                    "offset": 0,
                    "size": stat.st_size,
                    "table_file": 0,
                    "table_offset": tables.tell(),
                    "table_size": len(table),
                }
            )
            tables.write(table)
            durations[video.id] = found.table.num_frames / float(found.fps)
            path = str(video.path.resolve())
            files.append({"path": path, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns})
        files[0]["size"] = tables.tell()
    report = finish_pack(
        out,
        annotations,
        durations=durations,
        refused=refused,
        files=files,
        chunks=chunks,
        codecs=codecs.rows,
        size=sum(row["size"] for row in files[1:]),
        profile=None,
        source_digest=None,
    )
    if on_progress:
        on_progress(total, total, sum(durations.values()))
    return report


@dataclass(frozen=True)
class _Found:
    table: PacketTable
    format: VideoFormat
    fps: Fraction


def _look(video: VideoFile) -> _Found:
    """Scan a file and decode its first frame as a clip would be."""
    video.id.encode()
    source = probe(video.path)
    if needs := needs_normalising(source):
        raise MediaError(f"must be {needs} before training, which indexing cannot do: pack it")
    scan = scan_packets(video.path)
    fmt = VideoFormat(
        scan.codec, source.width, source.height, source.pix_fmt, scan.extradata, source.matrix,
        source.full_range,
    )  # fmt: skip
    if not len(scan.table.key_frames) or scan.table.key_frames[0] != 0:
        raise MediaError("starts with frames that need an earlier one, so it cannot be indexed")
    with video.path.open("rb") as file:
        out = np.empty((1, frame_bytes((16, 16))), np.uint8)
        ClipDecoder().decode(
            fmt, scan.table, lambda start, end: os.pread(file.fileno(), end - start, start), [0],
            out, size=(16, 16),
        )  # fmt: skip
    return _Found(scan.table, fmt, source.fps)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "has a name that is not UTF-8"
    if isinstance(error, OSError):
        reason = "no such file" if error.errno == errno.ENOENT else error.strerror
        return f"cannot be read: {reason}"
    return str(error)


def needs_normalising(source: Probe) -> str:
    """What would have to be done to a file before its stored frames are those to be shown.

    Empty if nothing, else words such as "turned upright and deinterlaced".
    """
    needs = [
        what
        for what, holds in (
            ("turned upright", bool(source.orientation.filters)),
            ("given square pixels", source.pixel_aspect != 1),
            ("deinterlaced", source.interlaced),
            ("evenly spaced in time", not source.constant),
            ("converted from its colour matrix", source.colorspace not in (0, 1, 2, 5, 6)),
        )
        if holds
    ]
    return " and ".join(needs)
