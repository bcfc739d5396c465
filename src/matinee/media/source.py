"""What a video is read from, and how it is opened.

# Note [Sources]
A video is a file, a member of an uncompressed tar, or a folder of numbered images. Whoever reads
originals takes any of them and asks the functions here; `str(source)` names it in messages.

A tar member is read in place, through FFmpeg's `subfile` protocol, within the bytes that the tar's
header gives it; nothing is ever unpacked. A folder's images are its frames in the order of their
numbers, at a rate that somebody has to state, for images have no times.

Paths are made absolute before FFmpeg sees them: "http:/x" or "concat:a" would be a protocol.
Playlists are refused, because they make FFmpeg open other files than the one that was given.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO

import av

from matinee.errors import MediaError


@dataclass(frozen=True, slots=True)
class TarMember:
    """A file inside an uncompressed tar: `size` bytes from byte `offset` of `tar`."""

    tar: Path
    name: str
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.tar}:{self.name}"


@dataclass(frozen=True, slots=True)
class FrameFolder:
    """A folder of images, `prefix00001.jpg` and so on, shown `fps` to the second."""

    folder: Path
    fps: Fraction

    def __str__(self) -> str:
        return str(self.folder)


Source = Path | TarMember | FrameFolder
"""See Note [Sources]. Small, hashable, and picklable: it travels to worker processes."""

# Demuxers that read what another file says, or no file at all.
_INDIRECT = {"hls", "dash", "concat", "concatf", "imf", "lavfi", "webm_dash_manifest"}
_FRAME = re.compile(
    r"(?P<prefix>.*?)(?P<number>[0-9]{1,12})(?P<ending>\.(?:jpe?g|png))", re.IGNORECASE | re.DOTALL
)
# Optical flow lies beside the pictures in folders that were made for two-stream networks.
_FLOW = re.compile(r"(?:flow_|[xy]_[0-9])", re.IGNORECASE)


def stamp_of(source: Source) -> list[int]:
    """Size and modification time (ns) of a source, by which a change is noticed; 0 if absent.

    Of a folder of frames: the number of entries and its own time, which changes when frames come,
    go or are replaced by renaming; not when one is overwritten in place.
    """
    try:
        match source:
            case TarMember(tar=tar, size=size):
                return [size, tar.stat().st_mtime_ns]
            case FrameFolder(folder=folder):
                return [sum(1 for _ in folder.iterdir()), folder.stat().st_mtime_ns]
            case _:
                info = source.stat()
                return [info.st_size, info.st_mtime_ns]
    except (OSError, ValueError):
        return [0, 0]


def size_of(source: Source) -> int:
    """Bytes of a source; of a folder those of its frames.

    Raises:
        OSError: it is absent. MediaError: a folder without a sequence of frames.
    """
    match source:
        case TarMember(size=size):
            return size
        case FrameFolder(folder=folder):
            return sum((folder / name).stat().st_size for name in list_frames(folder).names)
        case _:
            return source.stat().st_size


def check_readable(source: Source) -> None:
    """Raise the OSError that tells why a source cannot be read, if it cannot."""
    if isinstance(source, FrameFolder):
        next(source.folder.iterdir(), None)
        return
    path = source.tar if isinstance(source, TarMember) else source
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    with path.open("rb"):
        pass
    if isinstance(source, TarMember) and path.stat().st_size < source.offset + source.size:
        raise OSError(errno.EIO, f"{path} is cut short")


def exists(source: Source) -> bool:
    """Whether there is anything of that name."""
    match source:
        case TarMember(tar=place) | FrameFolder(folder=place):
            pass
        case _:
            place = source
    try:
        return place.exists()
    except (OSError, ValueError):
        return False


def file_span(source: Source) -> tuple[Path, int, int]:
    """The file that holds a source's bytes, where they begin in it, and how many they are.

    Raises:
        MediaError: a folder of frames, which is no range of bytes of one file.
        OSError: it is absent.
    """
    match source:
        case TarMember(tar=tar, offset=offset, size=size):
            return tar, offset, size
        case FrameFolder():
            raise MediaError("is a folder of frames, not a file, so it cannot be indexed: pack it")
        case _:
            return source, 0, source.stat().st_size


def open_bytes(source: Source) -> BinaryIO:
    """The bytes of a file or tar member, and no others.

    Raises:
        MediaError: a folder of frames. OSError: it is absent.
    """
    path, offset, size = file_span(source)
    file = path.open("rb")
    if isinstance(source, Path):
        return file
    return io.BufferedReader(_Window(file, offset, size))


class _Window(io.RawIOBase):
    """Bytes `offset` … `offset + size` of a file, as a file of their own."""

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        self._file, self._offset, self._size, self._at = file, offset, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + place < 0:
            raise OSError(errno.EINVAL, "seek to before the beginning")
        self._at = base + place
        return self._at

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        view = memoryview(buffer).cast("B")
        room = max(0, min(len(view), self._size - self._at))
        data = os.pread(self._file.fileno(), room, self._offset + self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@dataclass(frozen=True, slots=True)
class FrameList:
    """The images of a folder in order; `pattern` is FFmpeg's, with the first number `start`."""

    names: tuple[str, ...]
    pattern: str
    start: int


def list_frames(folder: Path) -> FrameList:
    """The one numbered sequence of JPEG or PNG images in a folder.

    Other files are passed over, and so is optical flow (flow_…, x_…, y_…).

    Raises:
        MediaError: none, several sequences, or a number that is missing.
        OSError: the folder cannot be read.
    """
    found: dict[tuple[str, str], dict[int, str]] = {}
    for name in sorted(entry.name for entry in folder.iterdir()):
        match = _FRAME.fullmatch(name)
        if match is None or name.startswith(".") or _FLOW.match(name):
            continue
        number, kind = int(match["number"]), (match["prefix"], match["ending"])
        if found.setdefault(kind, {}).setdefault(number, name) != name:
            raise MediaError(f"holds frame {number} twice: {found[kind][number]} and {name}")
    if not found:
        raise MediaError("holds no numbered images (img_00001.jpg, 000001.png, …)")
    if len(found) > 1:
        some = " and ".join(min(names.values()) for names in list(found.values())[:2])
        raise MediaError(f"holds several sequences of images ({some}): one was expected")
    ((prefix, ending), numbered), *_ = found.items()
    start = min(numbered)
    missing = next((n for n in range(start, start + len(numbered)) if n not in numbered), None)
    if missing is not None:
        raise MediaError(f"lacks frame {missing}: its numbers go on to {max(numbered)}")
    names = tuple(numbered[number] for number in sorted(numbered))
    widths = {len(name) - len(prefix) - len(ending) for name in names}
    width = min(widths)
    pattern = f"%0{width}d"
    if any(prefix + pattern % n + ending != name for n, name in sorted(numbered.items())):
        raise MediaError(f"numbers its images in several ways ({names[0]} … {names[-1]})")
    return FrameList(names, prefix.replace("%", "%%") + pattern + ending, start)


def video_stream(container: av.container.InputContainer) -> av.VideoStream:
    """The first video stream that is not cover art.

    Raises:
        MediaError: there is none.
    """
    for stream in container.streams.video:
        if not stream.disposition & av.stream.Disposition.attached_pic:
            if stream.codec_context is None:
                raise MediaError("is in a codec for which there is no decoder")
            return stream
    if container.streams.video:
        raise MediaError("holds only cover art, no moving picture")
    raise MediaError("holds no video stream")


def open_video(source: Source | BinaryIO) -> av.container.InputContainer:
    """Open a source, or a file object, for reading.

    Raises:
        MediaError: FFmpeg cannot; the text says why. A playlist; a folder without frames.
    """
    try:
        container = _open(source)
    except (av.FFmpegError, OSError, ValueError) as error:
        # FFmpeg reports damaged files as PermissionError, EOFError or ValueError at times.
        raise MediaError(f"cannot be opened as video: {reason_of(error)}") from None
    kinds = set(container.format.name.split(","))
    if kinds & _INDIRECT:
        container.close()
        raise MediaError(f"is a playlist ({container.format.name}) that refers to other files")
    return container


def _open(source: Source | BinaryIO) -> av.container.InputContainer:
    match source:
        case TarMember(tar=tar, offset=offset, size=size):
            if size < 1:
                raise MediaError("is empty (0 bytes)")
            span = f"subfile,,start,{offset},end,{offset + size},,:"
            return av.open(span + os.path.abspath(tar), "r")  # noqa: PTH100 - links stay
        case FrameFolder(folder=folder, fps=fps):
            frames = list_frames(folder)
            place = os.path.abspath(folder).replace("%", "%%")  # noqa: PTH100
            options = {"framerate": str(fps), "start_number": str(frames.start)}
            return av.open(f"{place}/{frames.pattern}", "r", format="image2", options=options)
        case Path():
            return av.open(os.path.abspath(source), "r")  # noqa: PTH100
        case _:
            return av.open(source, "r")


def reason_of(error: BaseException) -> str:
    """FFmpeg's words about an error, without file name and errno."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text)
