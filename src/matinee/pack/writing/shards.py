"""Join the parts that workers wrote into shards, and make the rows of the tables."""

from __future__ import annotations

import base64
import os
import shutil
from pathlib import Path
from typing import Any

from matinee.errors import PackError
from matinee.media.packets import VideoFormat
from matinee.pack.annotations import VideoFile
from matinee.pack.format import SHARD_BYTES, TAR_END
from matinee.pack.tables import CodecRows
from matinee.pack.writing.staging import read_part, staged_name


def assemble_shards(
    out: Path, staging: Path, videos: tuple[VideoFile, ...], sizes: dict[int, int]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Join parts into shards of about a gigabyte, in order; rows of the three tables.

    Args:
        staging: the folder of parts.
        sizes: bytes of the part of each video that has one.
    """
    shards = out / "shards"
    shards.mkdir(exist_ok=True)
    groups: list[list[int]] = [[]]
    room = SHARD_BYTES
    for number, size in sorted(sizes.items()):
        if groups[-1] and size > room:
            groups.append([])
            room = SHARD_BYTES
        groups[-1].append(number)
        room -= size
    files: list[dict[str, Any]] = []
    chunks: list[dict[str, Any]] = []
    codecs = CodecRows()
    for index, group in enumerate(g for g in groups if g):
        shard = shards / f"{index:06d}.tar"
        parts = {number: _part(staging, number) for number in group}
        if not shard.exists():
            _join(shard, [staging / name for p in parts.values() for name in p["tars"]])
        at = 0
        for number, part in parts.items():
            for chunk in part["chunks"]:
                extradata = base64.b64decode(chunk["format"]["extradata"])
                fmt = VideoFormat(**{**chunk["format"], "extradata": extradata})
                chunks.append(
                    {
                        "video": videos[number].id,
                        "start_frame": chunk["start_frame"],
                        "start_s": chunk["start_frame"] * part["fps"][1] / part["fps"][0],
                        "frames": chunk["frames"],
                        "fps_num": part["fps"][0],
                        "fps_den": part["fps"][1],
                        "codec": codecs.number(fmt),
                        "file": index,
                        "offset": at + chunk["offset"],
                        "size": chunk["size"],
                        "table_file": index,
                        "table_offset": at + chunk["table_offset"],
                        "table_size": chunk["table_size"],
                    }
                )
            at += part["bytes"]
        size = shard.stat().st_size
        if size != at + len(TAR_END):
            raise PackError(f"{shard} has {size} bytes where {at + len(TAR_END)} were written")
        files.append({"path": f"shards/{shard.name}", "size": size, "mtime_ns": 0})
    return files, chunks, codecs.rows


def _part(staging: Path, number: int) -> dict[str, Any]:
    part = read_part(staging, staged_name(number))
    if part is None:
        raise PackError(f"{staging}: the part of video {number} has gone")
    return part


def _join(shard: Path, parts: list[Path]) -> None:
    aside = shard.with_suffix(".tar.tmp")
    with aside.open("wb") as target:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, target, 1 << 22)
        target.write(TAR_END)
        target.flush()
        os.fsync(target.fileno())
    aside.replace(shard)
    for part in parts:  # freed shard by shard: the disk never holds everything twice
        part.unlink()
