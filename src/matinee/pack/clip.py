"""Reading one located clip: a table, a byte range or two, a decode. Imports neither torch nor
pyarrow, so decoding workers start fast.
"""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matinee.errors import MediaError
from matinee.media.decode import Box, ClipDecoder, Pixels
from matinee.media.packets import PacketTable, VideoFormat

_OPEN_FILES = 64
_CACHED_TABLES = 256


@dataclass(frozen=True)
class Located:
    """Where one chunk of a video lies: byte positions of its file and of its packet table."""

    file: str
    offset: int
    size: int
    table_file: str
    table_offset: int
    table_size: int
    codec: int  # index into the pack's formats


@dataclass(frozen=True)
class ClipPart:
    """Frames of a clip in one chunk: `frames[i]` of the chunk goes to row `rows[i]`."""

    chunk: Located
    frames: tuple[int, ...]
    rows: tuple[int, ...]


class ClipReader:
    """Reads clips into rows of memory. Not thread-safe: one per worker thread.

    Keeps a bounded number of open files, packet tables and decoders.
    """

    def __init__(self, formats: Sequence[VideoFormat]) -> None:
        self._formats = formats
        self._decoder = ClipDecoder()
        self._files: OrderedDict[str, int] = OrderedDict()
        self._finalizer = weakref.finalize(self, _close_all, self._files)
        self._tables: OrderedDict[tuple[str, int], PacketTable] = OrderedDict()

    def read(
        self,
        parts: Sequence[ClipPart],
        out: NDArray[np.uint8],
        *,
        box: Box | None,
        size: tuple[int, int],
        pixels: Pixels = "i420",
    ) -> None:
        """Decode all parts with one crop into `out` [T, bytes of a frame].

        Raises:
            MediaError: a file is gone or damaged; the text names it.
        """
        self.read_crops(parts, [(out, box)], size=size, pixels=pixels)

    def read_crops(
        self,
        parts: Sequence[ClipPart],
        crops: Sequence[tuple[NDArray[np.uint8], Box | None]],
        *,
        size: tuple[int, int],
        pixels: Pixels = "i420",
    ) -> None:
        """As `read`, several crops, each into its own rows: every frame is decoded once."""
        for part in parts:
            chunk = part.chunk
            try:
                self._decoder.decode_crops(
                    self._formats[chunk.codec],
                    self.table(chunk),
                    lambda start, end, chunk=chunk: self._bytes(  # type: ignore[misc]
                        chunk.file, chunk.offset + start, end - start
                    ),
                    part.frames,
                    [([out[row] for row in part.rows], box) for out, box in crops],
                    size=size,
                    pixels=pixels,
                )
            except (MediaError, IndexError) as error:
                raise MediaError(str(error)) from None

    def table(self, chunk: Located) -> PacketTable:
        """The packet table of a chunk, from the cache or from disk."""
        key = (chunk.table_file, chunk.table_offset)
        table = self._tables.get(key)
        if table is None:
            raw = self._bytes(chunk.table_file, chunk.table_offset, chunk.table_size)
            table = PacketTable.from_bytes(raw, data_size=chunk.size)
            self._tables[key] = table
            if len(self._tables) > _CACHED_TABLES:
                self._tables.popitem(last=False)
        else:
            self._tables.move_to_end(key)
        return table

    def _bytes(self, path: str, offset: int, length: int) -> bytes:
        fd = self._files.get(path)
        if fd is None:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise MediaError(f"cannot open it: {error.strerror}") from None
            self._files[path] = fd
            if len(self._files) > _OPEN_FILES:
                os.close(self._files.popitem(last=False)[1])
        else:
            self._files.move_to_end(path)
        try:
            data = os.pread(fd, length, offset)
        except OSError as error:
            raise MediaError(f"cannot read it: {error.strerror}") from None
        if len(data) != length:
            raise MediaError(f"is cut short: {length} bytes at {offset} were expected")
        return data

    def close(self) -> None:
        """Close the files; also done when the reader is no longer used."""
        _close_all(self._files)


def _close_all(files: OrderedDict[str, int]) -> None:
    while files:
        os.close(files.popitem()[1])
