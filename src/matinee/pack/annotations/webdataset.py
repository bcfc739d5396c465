"""Tar shards as WebDataset and img2dataset write them: `key.mp4` with `key.txt`, `.json`, `.cls`.

Source: github.com/webdataset/webdataset: members of one sample share what stands before the first
dot of the file name; the tar format is POSIX.1-2001 (pax).
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from matinee.errors import AnnotationError
from matinee.media.source import TarMember
from matinee.pack.annotations.base import Annotations, VideoFile, is_text
from matinee.pack.annotations.files import Request, split_of, unreadable
from matinee.pack.annotations.samples import Samples

_VIDEOS = re.compile(r"mp4|m4v|mov|mkv|webm|avi|mpe?g|ts|flv|wmv|3gp|ogv")
_SAID = ("txt", "json", "cls")
_MAX_TEXT = 1 << 20
_MAX_HEADER = 1 << 20


@dataclass
class _Entry:
    label: str | None = None
    text: str | None = None
    video: TarMember | None = None


def read_webdataset(request: Request) -> Annotations:
    """A sample is a video in a shard, read where it lies; nothing is unpacked.

    `.txt` is the text (its lines are captions), `.cls` the label; of `.json` the fields caption or
    text, and label. The split is that of the shard's name or folder. A video's id is
    `<shard>/<member>`, with the shard's folder before it where two shards have one name.

    Links, devices, sparse files and names that leave the shard are refused and listed.

    Raises:
        AnnotationError: a compressed or damaged shard, two members of one name.
    """
    names: list[str] = []
    labels: list[str | None] = []
    texts: list[str | None] = []
    splits: list[str | None] = []
    videos: list[VideoFile] = []
    beside: list[tuple[str, str]] = []
    refused: list[tuple[str, str]] = []
    for shard, stem in _stems(request.files).items():
        for entry in _entries(shard, beside, refused).values():
            if entry.video is None:
                continue
            name = f"{stem}/{entry.video.name}"
            videos.append(VideoFile(name, entry.video))
            names.append(name)
            labels.append(entry.label)
            texts.append(entry.text)
            splits.append(split_of(shard))
    if not videos:
        raise AnnotationError(f"{request.files[0]} holds no videos")
    samples, notes = request.held_out(
        Samples.from_columns(names, label=labels, text=texts, split=splits)
    )
    return Annotations(tuple(videos), samples, tuple(beside), notes, tuple(refused))


def _stems(shards: tuple[Path, ...]) -> dict[Path, str]:
    """What each shard is called in ids."""
    names = {shard: shard.name.removesuffix(".tar") for shard in shards}
    uses = Counter(names.values())
    return {
        # abspath: the folder of `../a.tar` has a name, and links keep theirs
        shard: f"{Path(os.path.abspath(shard)).parent.name}/{name}" if uses[name] > 1 else name  # noqa: PTH100
        for shard, name in names.items()
    }


def _entries(
    shard: Path, beside: list[tuple[str, str]], refused: list[tuple[str, str]]
) -> dict[str, _Entry]:
    """Samples of a shard by key, in order. See Note [Hostile tars]."""
    found: dict[str, _Entry] = {}
    seen: set[str] = set()
    try:
        with shard.open("rb") as file:
            for member in _members(shard, file):
                name = f"{shard}:{member.name}"
                if member.isdir():
                    continue
                if reason := _refusal(member):
                    refused.append((name, reason))
                    continue
                path = PurePosixPath(member.name)
                member_name = str(path)
                if member_name in seen:
                    raise AnnotationError(f"{name} is there twice")
                seen.add(member_name)
                stem, _, ending = path.name.partition(".")
                entry = found.setdefault(str(path.with_name(stem or path.name)), _Entry())
                if _VIDEOS.fullmatch(ending.lower()) and stem:
                    if entry.video is not None:
                        raise AnnotationError(f"{name}: the sample has another video")
                    entry.video = TarMember(shard, member_name, member.offset_data, member.size)
                elif ending in _SAID and stem and member.size <= _MAX_TEXT:
                    _say(name, entry, ending, os.pread(
                        file.fileno(), member.size, member.offset_data
                    ))  # fmt: skip
                else:
                    beside.append((name, "neither a video nor said about one"))
    except OSError as error:
        raise unreadable(shard, error) from None
    return found


# Note [Hostile tars]
#
# `tarfile` reads headers only, through `_Headers`, which hands out no more than a megabyte at a
# time: an extended header may claim any size. Each member must lie behind the one before and inside
# the file; a negative size would otherwise lead back, for ever.


def _members(shard: Path, file: BinaryIO) -> Iterator[tarfile.TarInfo]:
    size = os.fstat(file.fileno()).st_size
    if file.read(2) in (b"\x1f\x8b", b"BZ", b"\xfd7", b"\x28\xb5"):
        raise AnnotationError(
            f"{shard} is compressed, so nothing in it can be read in place: unpack it"
        )
    file.seek(0)
    before = 0
    try:
        with tarfile.open(fileobj=_Headers(file), mode="r:") as tar:  # type: ignore[call-overload]
            while (member := tar.next()) is not None:
                tar.members = []  # else it keeps every one
                end = member.offset_data + member.size
                held = member.isreg() and not member.issparse()  # else there are no such bytes
                if member.size < 0 or member.offset_data < before or (held and end > size):
                    raise AnnotationError(f"{shard}: {member.name!r} lies outside the file")
                before = member.offset_data
                yield member
    except (tarfile.TarError, ValueError, OverflowError, IndexError, RecursionError) as error:
        raise AnnotationError(f"{shard} is no sound tar file: {error}") from None


class _Headers:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, count: int) -> bytes:
        if not 0 <= count <= _MAX_HEADER:
            raise ValueError(f"a header of {count} bytes")
        return self._file.read(count)


def _refusal(member: tarfile.TarInfo) -> str | None:
    path = PurePosixPath(member.name)
    if not is_text(member.name):
        return "has a name that is not UTF-8"
    if path.is_absolute() or ".." in path.parts or "\0" in member.name or not path.name:
        return "has a name that leaves the shard"
    if member.issym() or member.islnk():
        return "is a link, not a file"
    if member.issparse():
        return "is a sparse file, which is no plain range of bytes"
    if not member.isreg():
        return "is no regular file"
    return None


def _say(name: str, entry: _Entry, ending: str, data: bytes) -> None:
    try:
        text = data.decode("utf-8-sig").strip() or None
        if ending == "txt":
            entry.text = text
        elif ending == "cls":
            entry.label = text
        else:
            held = json.loads(data)
            if not isinstance(held, dict):
                raise ValueError("no object")
            entry.text = _field(held, "caption", "text") or entry.text
            entry.label = _field(held, "label") or entry.label
    except (ValueError, RecursionError) as error:
        raise AnnotationError(f"{name} cannot be read: {error}") from None


def _field(held: dict[str, object], *names: str) -> str | None:
    """A text or whole number; a list of texts as lines.

    Raises:
        ValueError: anything else.
    """
    for name in names:
        value = held.get(name)
        if isinstance(value, list):
            if not all(isinstance(text, str) for text in value):
                raise ValueError(f"{name} is a list of other things than texts")
            value = "\n".join(" ".join(text.split()) for text in value)
        if value is not None and type(value) not in (str, int):
            raise ValueError(f"{name} is a {type(value).__name__}, neither text nor a whole number")
        said = "" if value is None else str(value).strip()
        if not is_text(said):
            raise ValueError(f"{name} holds half a character, which is no Unicode")
        if said:
            return said
    return None
