"""The layout of a pack folder: names, versions, parquet schemas, tar members.

pack.json          version, profile, classes, counts; written last, so a folder without it is
                   unfinished
chunks.parquet     a row a chunk: video, position in the video, where its bytes and table lie
codecs.parquet     a row for each distinct decoder setup
files.parquet      the files the chunks lie in (shards, or indexed originals)
samples.parquet    a row a training sample
shards/000000.tar  members <video>/<start-ms>.mp4 and <video>/<start-ms>.packets.npy
failures.csv       what was refused or ignored, and why
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from matinee.errors import PackError

VERSION = 1
MANIFEST = "pack.json"
STAGING = ".staging"
PACK_FILES = {
    MANIFEST, STAGING, "shards", "tables.bin", "failures.csv", "chunks.parquet", "codecs.parquet",
    "files.parquet", "samples.parquet",
}  # fmt: skip
SHARD_BYTES = 1 << 30


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


CHUNKS = pa.schema(
    [
        _required("video", pa.string()),
        _required("start_frame", pa.int64()),
        _required("start_s", pa.float64()),
        _required("frames", pa.int32()),
        _required("fps_num", pa.int32()),
        _required("fps_den", pa.int32()),
        _required("codec", pa.int32()),
        _required("file", pa.int32()),
        _required("offset", pa.int64()),  # of the MP4 in its file
        _required("size", pa.int64()),
        _required("table_file", pa.int32()),
        _required("table_offset", pa.int64()),
        _required("table_size", pa.int64()),
    ]
)
CODECS = pa.schema(
    [
        _required("codec", pa.string()),
        _required("width", pa.int32()),
        _required("height", pa.int32()),
        _required("pix_fmt", pa.string()),
        _required("matrix", pa.string()),
        _required("full_range", pa.bool_()),
        _required("extradata", pa.binary()),
    ]
)
FILES = pa.schema(
    [
        _required("path", pa.string()),
        _required("size", pa.int64()),
        _required("mtime_ns", pa.int64()),
    ]
)  # mtime_ns is 0 for files of the pack itself
SAMPLES = pa.schema(
    [
        _required("sample", pa.string()),
        _required("video", pa.string()),
        ("start_s", pa.float64()),
        ("end_s", pa.float64()),
        ("split", pa.string()),
        ("label", pa.string()),
        ("text", pa.string()),
    ]
)  # further columns of the annotations follow, as strings


def tar_member(name: str, data: bytes) -> tuple[bytes, int]:
    """One tar member as bytes (header, data, padding) and the offset of its data."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o644
    header = info.tobuf(tarfile.PAX_FORMAT)
    return header + data + bytes(-len(data) % tarfile.BLOCKSIZE), len(header)


TAR_END = bytes(2 * tarfile.BLOCKSIZE)


def read_manifest(path: Path) -> dict[str, Any]:
    """The content of pack.json, checked.

    Raises:
        PackError: missing, unfinished, damaged, or made by a newer matinee.
    """
    file = path / MANIFEST
    try:
        meta = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        if (path / STAGING).exists():
            raise PackError(
                f"{path} is an unfinished pack: run the same 'matinee pack' command again, "
                "it continues where it stopped"
            ) from None
        raise PackError(f"{path} is no pack: it has no {MANIFEST}") from None
    except (ValueError, OSError) as error:
        raise PackError(f"{file} is damaged: {error}") from None
    if not isinstance(meta, dict) or meta.get("format") != "matinee pack":
        raise PackError(f"{file} does not describe a matinee pack")
    version = meta.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise PackError(
            f"{path} has pack format version {version}, this matinee reads up to {VERSION}: "
            "upgrade matinee"
        )
    counts = {"videos", "samples", "chunks", "bytes", "seconds_of_video", "refused", "ignored"}
    if not isinstance(meta.get("report"), dict) or not counts <= set(meta["report"]):
        raise PackError(f"{file} is damaged: its report is missing")
    classes = meta.get("classes")
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise PackError(f"{file} is damaged: it has no list of classes")
    return meta
