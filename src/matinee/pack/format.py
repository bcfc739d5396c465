"""The layout of a pack folder: names, versions, parquet schemas, tar members.

pack.json          version, profile, classes, counts; written last, so a folder without it is
                   unfinished
chunks.parquet     a row a chunk: video, position in the video, where its bytes and table lie
codecs.parquet     a row for each distinct decoder setup
files.parquet      the files the chunks lie in (shards, or indexed originals)
samples.parquet    a row a training sample; where `matinee annotate` replaced them, pack.json names
                   another file: see Note [Replaced samples]
shards/000000.tar  members <video>/<start-ms>.mp4 and <video>/<start-ms>.packets.npy
failures.csv       what was refused or ignored, and why

# Note [Replaced samples]
New samples are written beside the old as `samples-<n>.parquet`, with `failures-<n>.csv`, and then
pack.json, under "files", names both in place of the first two. It is replaced in one step, so a
reader finds old or new, never a mixture. The files named before stay, for a reader that has just
read the old pack.json; those before them go. Version 1 of the format knew no other names.
"""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from matinee.errors import PackError

VERSION = 2
MANIFEST = "pack.json"
STAGING = ".staging"
PACK_FILES = {
    MANIFEST, STAGING, "shards", "tables.bin", "failures.csv", "chunks.parquet", "codecs.parquet",
    "files.parquet", "samples.parquet",
}  # fmt: skip
SAMPLE_TABLE = "samples.parquet"
FAILURES = "failures.csv"
_REPLACED = re.compile(r"(samples|failures)-([0-9]{1,9})\.(parquet|csv)")
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


def _replaces(part: str, name: object) -> bool:
    if not isinstance(name, str):
        return False
    return name == part or name == replaced_name(part, replacement(name))


def _is_number(value: object, kind: type[int] | type[float]) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        return False
    return 0 <= value < 1 << 63


def _is_profile(profile: object) -> bool:
    return (
        isinstance(profile, dict)
        and isinstance(profile.get("name"), str)
        and all(_is_number(profile.get(name), int) for name in ("stride", "gop", "crf"))
    )


def is_pack_file(name: str) -> bool:
    """Whether a pack's folder may hold an entry of this name."""
    return name in PACK_FILES or _REPLACED.fullmatch(name) is not None


def part_name(meta: dict[str, Any], part: str) -> str:
    """The file that now stands for SAMPLE_TABLE or FAILURES; see Note [Replaced samples]."""
    return str(meta.get("files", {}).get(part, part))


def replaced_name(part: str, number: int) -> str:
    """What the `number`-th replacement of a part is called."""
    stem, _, ending = part.partition(".")
    return f"{stem}-{number}.{ending}"


def replacement(name: str) -> int:
    """Of which replacement a file is; 0 for the first, or any other file."""
    match = _REPLACED.fullmatch(name)
    return int(match[2]) if match else 0


TAR_END = bytes(2 * tarfile.BLOCKSIZE)


def read_manifest(path: Path) -> dict[str, Any]:
    """The content of a local pack.json, checked.

    Raises:
        PackError: missing, unfinished, damaged, or made by a newer matinee.
    """
    try:
        raw = (path / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if (path / STAGING).exists():
            raise PackError(
                f"{path} is an unfinished pack: run the same 'matinee pack' command again, "
                "it continues where it stopped"
            ) from None
        raise PackError(f"{path} is no pack: it has no {MANIFEST}") from None
    except OSError as error:
        raise PackError(f"{path / MANIFEST} is damaged: {error}") from None
    return check_manifest(path, raw)


def check_manifest(path: Path | str, raw: bytes) -> dict[str, Any]:
    """The content of the pack.json of the pack at `path`.

    Raises:
        PackError: damaged, or made by a newer matinee.
    """
    file = f"{path}/{MANIFEST}"
    try:
        meta = json.loads(raw)
    except (ValueError, RecursionError) as error:
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
    report, profile = meta["report"], meta.get("profile")
    for name in sorted(counts):
        if not _is_number(report[name], float if name == "seconds_of_video" else int):
            raise PackError(f"{file} is damaged: {name} of its report is {repr(report[name])[:80]}")
    if profile is not None and not _is_profile(profile):
        raise PackError(f"{file} is damaged: its profile is {repr(profile)[:80]}")
    named = meta.get("files", {})
    if not isinstance(named, dict) or any(
        part not in (SAMPLE_TABLE, FAILURES) or not _replaces(part, name)
        for part, name in named.items()
    ):
        raise PackError(f"{file} is damaged: it names files that are no part of a pack")
    classes = meta.get("classes")
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise PackError(f"{file} is damaged: it has no list of classes")
    return meta
