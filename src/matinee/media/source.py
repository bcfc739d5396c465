"""What a video is read from, and how it is opened."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import av

from matinee.errors import MediaError

Source = Path
"""A file. Everything that reads an original takes one, and opens it by `open_video`."""


def stamp_of(source: Source) -> list[int]:
    """Size and modification time (ns) of a source, by which a change is noticed; 0 if absent."""
    try:
        info = source.stat()
    except (OSError, ValueError):
        return [0, 0]
    return [info.st_size, info.st_mtime_ns]


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


def open_video(source: Path | BinaryIO) -> av.container.InputContainer:
    """Open a file for reading.

    Raises:
        MediaError: FFmpeg cannot; the text says why.
    """
    try:
        return av.open(str(source) if isinstance(source, Path) else source, "r")
    except (av.FFmpegError, OSError, ValueError) as error:
        # FFmpeg reports damaged files as PermissionError, EOFError or ValueError at times.
        raise MediaError(f"cannot be opened as video: {reason_of(error)}") from None


def reason_of(error: BaseException) -> str:
    """FFmpeg's words about an error, without file name and errno."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text)
