"""Where images come from: a folder, or a tar archive read as a stream and never unpacked.

Both list their files first, so that classes, splits and limits are planned before any image is
decoded (image_plan.py), and are then read once more for the planned ones.
"""

from __future__ import annotations

import gzip
import io
import os
import posixpath
import tarfile
import unicodedata
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from matinee.errors import ConfigError, PackError, first_line
from matinee.media.image import MAX_BYTES
from matinee.pack.annotations.base import bystander

ARCHIVES = (".tar", ".tar.gz", ".tgz")
# Whatever claims to be an image by its name is decoded or refused, never overlooked.
IMAGES = {
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".dib", ".webp", ".gif", ".tif", ".tiff",
    ".avif", ".heic", ".heif", ".jp2", ".jxl", ".ppm", ".pgm", ".pnm",
}  # fmt: skip
_HEADER_BYTES = 1 << 20  # of a tar header's own text; far more than any name needs
_HEADER_TYPES = {
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
}  # fmt: skip


@dataclass(frozen=True)
class ImageFile:
    """One file of a source: `id` its path there, `place` where to find it again, `size` bytes."""

    id: str
    place: int
    size: int


@dataclass
class Listing:
    """All files of a source. `refused` and `ignored` hold (path, reason)."""

    images: list[ImageFile] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)
    refused: list[tuple[str, str]] = field(default_factory=list)
    ignored: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, place: int, size: int) -> None:
        """Sort a regular file in: image by its name or bystander, sound or refused."""
        if _hidden(name):
            self.ignored.append((shown(name), "a hidden file"))
        elif not is_image(name):
            self.ignored.append((shown(name), "not an image by its name"))
        elif name != shown(name):
            self.refused.append((shown(name), "its name holds bytes that are no text"))
        elif size > MAX_BYTES:
            reason = f"has {size} bytes; the largest image file read has {MAX_BYTES}"
            self.refused.append((name, reason))
        else:
            self.images.append(ImageFile(name, place, size))


class ImageSource(ABC):
    """Files by name, read in any order that the source likes."""

    path: Path

    @abstractmethod
    def list(self) -> Listing:
        """Every file, without reading contents.

        Raises:
            PackError: the source cannot be read.
        """

    @abstractmethod
    def read(self, wanted: Mapping[int, ImageFile]) -> Iterator[tuple[ImageFile, bytes | str]]:
        """The bytes of the files at the places `wanted`, or the reason why one cannot be read.

        Raises:
            PackError: the source changed or cannot be read further.
        """


def open_source(path: Path) -> ImageSource:
    """A folder or an archive by its name.

    Raises:
        ConfigError: neither.
    """
    if path.is_dir():
        return FolderSource(path)
    if is_archive(path):
        return ArchiveSource(path)
    if not path.exists():
        raise ConfigError(f"{path}: no such folder or archive")
    raise ConfigError(f"{path}: expected a folder, or an archive: {', '.join(ARCHIVES)}")


def is_archive(path: Path) -> bool:
    """Whether a path is a file that is an archive by its name."""
    return path.name.lower().endswith(ARCHIVES) and path.is_file()


def is_image(name: str) -> bool:
    """Whether a file is an image by its name."""
    return posixpath.splitext(name)[1].lower() in IMAGES


def images_because(path: Path) -> str | None:
    """Why a path is taken for images rather than videos, or None."""
    if is_archive(path):
        return f"{path} is an archive"
    count = 0
    for _, folders, names in os.walk(path, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if is_image(name) and not name.startswith("."):
                count += 1
            elif bystander(Path(name)) is None:
                return None
    return f"{path} holds {count} images and no videos" if count else None


def shown(name: str) -> str:
    """A name without control characters and bytes that are no text: they are written as escapes."""
    if name.isascii() and name.isprintable():
        return name
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in ("Cc", "Cs") else c
        for c in name
    )


class FolderSource(ImageSource):
    """A folder, links followed: what lies there is its owner's choice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: list[Path] = []

    def list(self) -> Listing:
        def stop(error: OSError) -> None:
            raise PackError(f"{error.filename} cannot be read: {error.strerror}")

        found = Listing()
        self._files = []
        for base, folders, names in os.walk(self.path, onerror=stop, followlinks=True):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            inside = Path(base).relative_to(self.path)
            found.folders |= {str(PurePosixPath(inside / name)) for name in folders}
            for name in sorted(names):
                file, id = Path(base) / name, str(PurePosixPath(inside / name))
                if file.is_file():
                    found.add(id, len(self._files), file.stat().st_size)
                    self._files.append(file)
                elif is_image(name):
                    found.refused.append((shown(id), "a broken link, or no file"))
                else:
                    found.ignored.append((shown(id), "a broken link, or no file"))
        return found

    def read(self, wanted: Mapping[int, ImageFile]) -> Iterator[tuple[ImageFile, bytes | str]]:
        for place, image in wanted.items():
            try:
                with self._files[place].open("rb") as file:
                    data = file.read(MAX_BYTES + 1)
            except OSError as error:
                yield image, f"cannot be read: {error.strerror}"
            else:
                yield image, data if len(data) <= MAX_BYTES else "grew while it was read"


class ArchiveSource(ImageSource):
    """A .tar, .tar.gz or .tgz file, of which nothing is ever written to disk.

    Links, devices, sparse files, and names that are absolute or hold `..` are refused.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def list(self) -> Listing:
        found, seen = Listing(), set[str]()
        for place, member, _ in self._members():
            name = _tidy(member.name)
            if member.isdir():
                if not _hidden(name):
                    found.folders.add(name)
            elif reason := _unsafe(member, name, seen):
                (found.refused if is_image(name) else found.ignored).append((shown(name), reason))
            else:
                found.add(name, place, member.size)
            seen.add(name)
        return found

    def read(self, wanted: Mapping[int, ImageFile]) -> Iterator[tuple[ImageFile, bytes | str]]:
        left = len(wanted)
        for place, member, archive in self._members():
            image = wanted.get(place)
            if image is None:
                continue
            if (_tidy(member.name), member.size) != (image.id, image.size):
                raise PackError(f"{self.path} changed while it was read: run the command again")
            with self._reading():
                file = archive.extractfile(member)
                assert file is not None, "only regular files are listed"
                data = file.read()
            yield image, data
            left -= 1
            if not left:
                return  # the rest was checked when the archive was listed
        raise PackError(f"{self.path} changed while it was read: run the command again")

    def _members(self) -> Iterator[tuple[int, tarfile.TarInfo, tarfile.TarFile]]:
        """Number and header of each member; the archive's end is checked after the last."""
        with self._reading(), self.path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            plain = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if zipped else raw
            stream = _Counting(plain)
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_BoundedHeader) as archive:
                place = 0
                while (member := archive.next()) is not None:
                    yield place, member, archive
                    # Or millions of headers would fill the memory.
                    archive.members.clear()  # type: ignore[attr-defined]
                    place += 1
                end = archive.offset
            rest = 0
            while data := plain.read(1 << 20):
                rest += len(data)  # to the end, where gzip has its checksum
            # A tar ends with blocks of zeros; without even one, it was cut off between two files.
            if end + tarfile.BLOCKSIZE > stream.total + rest:
                raise PackError(f"{self.path} is cut off: it has no end mark; fetch it again")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Errors of tar, gzip and the system become one that names the archive."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or first_line(error)
            raise PackError(f"{self.path} cannot be read: {reason}") from None
        except (tarfile.TarError, EOFError, zlib.error, ValueError, OverflowError) as error:
            raise PackError(f"{self.path} is damaged: {first_line(error)}") from None


def _tidy(name: str) -> str:
    """A member's name without "./" and doubled slashes."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return ("/" if name.startswith("/") else "") + "/".join(parts)


def _hidden(name: str) -> bool:
    return name.startswith(".") or "/." in name


def _unsafe(member: tarfile.TarInfo, name: str, seen: set[str]) -> str | None:
    """Why a member that is no folder is not read, or None."""
    if member.issym() or member.islnk():
        return f"a link to {shown(member.linkname)!r}"
    if not member.isreg():
        return "no file"
    if member.issparse():
        return "a sparse file"
    if name.startswith("/") or ".." in name.split("/"):
        return "its name leads outside the archive"
    return "the archive holds this name twice" if name in seen else None


class _BoundedHeader(tarfile.TarInfo):
    """A tar header; one with megabytes of text is refused before it is read into memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        text = self.type in _HEADER_TYPES
        if self.size < 0 or (text and self.size > _HEADER_BYTES):
            raise tarfile.ReadError(f"a {'header' if text else 'file'} of {self.size} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]


class _Counting(io.RawIOBase):
    """A stream that counts what was read of it, and does not end twice.

    tarfile skips a file block by block without noticing the end, for hours if it claims a terabyte.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._ended = False
        self.total = 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        if not data:
            if self._ended:
                raise EOFError("it ends in the middle of a file")
            self._ended = True
        self.total += len(data)
        return data
