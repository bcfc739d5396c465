"""Index videos in place: the tables of a pack over existing files, without re-encoding."""

from __future__ import annotations

import base64
import errno
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matinee.errors import MediaError, PackError
from matinee.media.packets import VideoFormat, scan_packets
from matinee.media.probe import Probe, probe
from matinee.pack.annotations import Annotations
from matinee.pack.finish import Failure, PackReport, finish_pack
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
    out = Path(out)
    if overwrite:
        remove_pack(out)
    if out.exists() and any(out.iterdir()):
        raise PackError(f"{out} exists; choose another --out, or replace it with --overwrite")
    out.mkdir(parents=True, exist_ok=True)
    files: list[dict[str, Any]] = [{"path": "tables.bin", "size": 0, "mtime_ns": 0}]
    chunks: list[dict[str, Any]] = []
    codecs: list[dict[str, Any]] = []
    codec_ids: dict[str, int] = {}
    durations: dict[str, float] = {}
    refused: list[Failure] = []
    with (out / "tables.bin").open("wb") as tables:
        for done, video in enumerate(annotations.videos):
            if on_progress:
                on_progress(done, len(annotations.videos), sum(durations.values()))
            try:
                video.id.encode()
                source = probe(video.path)
                _check_plain(source)
                scan = scan_packets(video.path)
            except OSError as error:
                reason = "no such file" if error.errno == errno.ENOENT else f"{error.strerror}"
                refused.append(Failure(str(video.path), "refused", f"cannot be read: {reason}"))
                continue
            except UnicodeEncodeError:
                reason = "has a name that is not UTF-8"
                refused.append(Failure(str(video.path), "refused", reason))
                continue
            except MediaError as error:
                refused.append(Failure(str(video.path), "refused", str(error)))
                continue
            fmt = asdict(
                VideoFormat(
                    scan.codec, source.width, source.height, source.pix_fmt, b"",
                    source.matrix, source.full_range,
                )
            )  # fmt: skip
            fmt["extradata"] = base64.b64encode(scan.extradata).decode()
            key = json.dumps(fmt, sort_keys=True)
            if key not in codec_ids:
                codec_ids[key] = len(codecs)
                codecs.append(fmt)
            stat = video.path.stat()
            table = scan.table.to_bytes()
            chunks.append(
                {
                    "video": video.id,
                    "start_frame": 0,
                    "start_s": 0.0,
                    "frames": scan.table.num_frames,
                    "fps_num": source.fps.numerator,
                    "fps_den": source.fps.denominator,
                    "codec": codec_ids[key],
                    "file": len(files),
                    "offset": 0,
                    "size": stat.st_size,
                    "table_file": 0,
                    "table_offset": tables.tell(),
                    "table_size": len(table),
                }
            )
            tables.write(table)
            durations[video.id] = scan.table.num_frames / float(source.fps)
            files.append(
                {
                    "path": str(video.path.resolve()),
                    "size": stat.st_size,
                    "mtime_ns": stat.st_mtime_ns,
                }
            )
        files[0]["size"] = tables.tell()
    report = finish_pack(
        out,
        annotations,
        durations=durations,
        refused=refused,
        files=files,
        chunks=chunks,
        codecs=codecs,
        size=sum(row["size"] for row in files[1:]),
        profile=None,
        source_digest=None,
    )
    if on_progress:
        on_progress(len(annotations.videos), len(annotations.videos), sum(durations.values()))
    return report


def _check_plain(source: Probe) -> None:
    needs = [
        what
        for what, holds in (
            ("turned upright", bool(source.orientation.filters)),
            ("its pixels squared", source.pixel_aspect != 1),
            ("deinterlaced", source.interlaced),
            ("evenly spaced in time", not source.constant),
        )
        if holds
    ]
    if needs:
        raise MediaError(
            f"must be {' and '.join(needs)} before training, which indexing cannot do: pack it"
        )
