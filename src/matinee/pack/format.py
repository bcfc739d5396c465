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

import os
import tarfile
from pathlib import Path

import pyarrow as pa

VERSION = 1
MANIFEST = "pack.json"
SHARD_BYTES = 1 << 30

CHUNKS = pa.schema(
    [
        ("video", pa.string()),
        ("start_frame", pa.int64()),
        ("start_s", pa.float64()),
        ("frames", pa.int32()),
        ("fps_num", pa.int32()),
        ("fps_den", pa.int32()),
        ("codec", pa.int32()),
        ("file", pa.int32()),
        ("offset", pa.int64()),  # of the MP4 in its file
        ("size", pa.int64()),
        ("table_file", pa.int32()),
        ("table_offset", pa.int64()),
        ("table_size", pa.int64()),
    ]
)
CODECS = pa.schema(
    [
        ("codec", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("pix_fmt", pa.string()),
        ("matrix", pa.string()),
        ("full_range", pa.bool_()),
        ("extradata", pa.binary()),
    ]
)
FILES = pa.schema(
    [("path", pa.string()), ("size", pa.int64()), ("mtime_ns", pa.int64())]
)  # mtime_ns is 0 for files of the pack itself
SAMPLES = pa.schema(
    [
        ("sample", pa.string()),
        ("video", pa.string()),
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


def write_durably(path: Path, data: bytes) -> None:
    """Write aside, flush to disk, rename: the file is there whole or not at all."""
    aside = path.with_name(path.name + ".tmp")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
