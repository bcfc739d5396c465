"""Reading one located clip: a table, a byte range or two, a decode. Imports neither torch nor
pyarrow, so decoding workers start fast.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from matinee.errors import MediaError
from matinee.media.decode import Box, ClipDecoder, Pixels
from matinee.media.packets import PacketTable, VideoFormat
from matinee.media.plan import byte_ranges, packets_to_feed
from matinee.media.work import Work
from matinee.pack.reading.storage import LocalFiles, Range, Remote, Unread

_CACHED_TABLES = 256
_WHOLE = 4 << 20  # bytes of a chunk and its table that may be read in one request
_SHARE = 4  # a clip that spans one part in so many of a chunk reads all of it
_SMALL = 256 << 10  # bytes of one that always is
_BESIDE = 4096  # bytes between a chunk and its table, or the next chunk, that are read along
_AHEAD = 64 << 20  # bytes of a clip that are read before it is decoded


@dataclass(frozen=True)
class Located:
    """Where one chunk of a video lies: byte positions of its file and of its packet table.

    Files are paths, or public addresses, which `remote` says how to read; `file_bytes` and
    `table_file_bytes` are how long the files are as a whole.
    """

    file: str
    offset: int
    size: int
    table_file: str
    table_offset: int
    table_size: int
    codec: int  # index into the pack's formats
    frames: int
    file_bytes: int
    table_file_bytes: int
    remote: Remote | None = None

    @property
    def whole(self) -> Range | None:
        """The chunk with its table, where one request should read both."""
        beside = self.table_offset - self.offset - self.size
        length = self.table_offset + self.table_size - self.offset
        if self.table_file != self.file or not 0 <= beside <= _BESIDE or length > _WHOLE:
            return None
        return Range(self.file, self.file_bytes, self.offset, length)

    @property
    def table(self) -> Range:
        """The packet table alone."""
        return Range(self.table_file, self.table_file_bytes, self.table_offset, self.table_size)

    def part(self, start: int, end: int) -> Range:
        """Bytes start … end - 1 of the chunk."""
        return Range(self.file, self.file_bytes, self.offset + start, end - start)


@dataclass(frozen=True)
class ClipPart:
    """Frames of a clip in one chunk: `frames[i]` of the chunk goes to row `rows[i]`."""

    chunk: Located
    frames: tuple[int, ...]
    rows: tuple[int, ...]


class ClipReader:
    """Reads clips into rows of memory. Not thread-safe: one per worker thread.

    Keeps a bounded number of open files, packet tables and decoders. `work` adds up what was done;
    put another in its place to begin at nothing.
    """

    def __init__(self, formats: Sequence[VideoFormat]) -> None:
        self._formats = formats
        self._decoder = ClipDecoder()
        self._local = LocalFiles()
        self._tables: OrderedDict[tuple[str, int], PacketTable] = OrderedDict()
        self._ahead: list[tuple[Range, bytes]] = []  # of the clip that is being read

    @property
    def work(self) -> Work:
        return self._decoder.work

    @work.setter
    def work(self, work: Work) -> None:
        self._decoder.work = work

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
        """As `read`, several crops, each into its own rows: every frame is decoded once.

        What turns out to be wrong is not kept: a clip whose bytes may have come from a cache is
        read once more, without it.
        """
        try:
            try:
                self._read_crops(parts, crops, size, pixels)
            except (MediaError, IndexError) as error:
                if isinstance(error, Unread) or not self._forget(parts):
                    raise
                self._read_crops(parts, crops, size, pixels)
        except (MediaError, IndexError) as error:
            raise MediaError(str(error)) from None

    def _read_crops(
        self,
        parts: Sequence[ClipPart],
        crops: Sequence[tuple[NDArray[np.uint8], Box | None]],
        size: tuple[int, int],
        pixels: Pixels,
    ) -> None:
        try:
            self._read_ahead([part for part in parts if part.chunk.remote])
            for part in parts:
                self._decoder.decode_crops(
                    self._formats[part.chunk.codec],
                    self.table(part.chunk),
                    self._reading(part.chunk),
                    part.frames,
                    [([out[row] for row in part.rows], box) for out, box in crops],
                    size=size,
                    pixels=pixels,
                )
        finally:
            self._ahead.clear()

    def _forget(self, parts: Sequence[ClipPart]) -> bool:
        """Drop what is kept of the remote chunks of a clip; whether a cache may have held any."""
        cached = False
        for chunk in (part.chunk for part in parts):
            if chunk.remote is None:
                continue
            self._tables.pop((chunk.table_file, chunk.table_offset), None)
            if chunk.remote.cache is not None:
                from matinee.pack.reading.remote import forget_ranges  # here: as below

                forget_ranges(chunk.remote, [chunk.part(0, chunk.size), chunk.table])
                cached = True
        return cached

    def table(self, chunk: Located) -> PacketTable:
        """The packet table of a chunk, from the cache or from where it lies."""
        key = (chunk.table_file, chunk.table_offset)
        table = self._tables.get(key)
        if table is None:
            raw = bytes(self._bytes(chunk.remote, chunk.table))
            table = PacketTable.from_bytes(raw, data_size=chunk.size)
            self._tables[key] = table
            if len(self._tables) > _CACHED_TABLES:
                self._tables.popitem(last=False)
        else:
            self._tables.move_to_end(key)
        return table

    def chunk(self, chunk: Located) -> bytes | memoryview:
        """All bytes of a chunk, a video file of its own.

        Raises:
            MediaError: it cannot be read.
        """
        return self._bytes(chunk.remote, chunk.part(0, chunk.size))

    def _reading(self, chunk: Located) -> Callable[[int, int], bytes | memoryview]:
        return lambda start, end: self._bytes(chunk.remote, chunk.part(start, end))

    def _bytes(self, remote: Remote | None, wanted: Range) -> bytes | memoryview:
        if remote is None:
            with self._storage(wanted.length):
                return self._local.read(wanted.file, wanted.offset, wanted.length)
        for held, data in self._ahead:
            begin = wanted.offset - held.offset
            if held.file == wanted.file and 0 <= begin <= held.length - wanted.length:
                return memoryview(data)[begin : begin + wanted.length]
        self._fetch(remote, [wanted])
        return self._ahead.pop()[1]

    def _read_ahead(self, parts: Sequence[ClipPart]) -> None:
        """Read what a clip needs of remote chunks, at once. See Note [Remote packs]."""
        if not parts or (remote := parts[0].chunk.remote) is None:
            return
        first: list[Range] = []
        later: list[ClipPart] = []
        room = _AHEAD
        for part in parts:
            chunk = part.chunk
            whole = chunk.whole
            if whole is not None and whole.length <= room and _takes_whole(part, whole):
                first.append(whole)
                room -= whole.length
                continue
            later.append(part)
            if (chunk.table_file, chunk.table_offset) not in self._tables:
                first.append(chunk.table)
                room -= chunk.table_size
        self._fetch(remote, _joined(first))
        runs: list[Range] = []
        for part in later:
            table = self.table(part.chunk)
            packets = [p for run in packets_to_feed(table, part.frames) for p in run]
            offsets, sizes = table.offset[packets].tolist(), table.size[packets].tolist()
            for start, end in byte_ranges(offsets, sizes):
                if end - start <= room:
                    runs.append(part.chunk.part(start, end))
                    room -= end - start
        self._fetch(remote, runs)

    def _fetch(self, remote: Remote, ranges: Sequence[Range]) -> None:
        if ranges:
            from matinee.pack.reading.remote import (
                read_ranges,  # here: local packs do without fsspec
            )

            with self._storage(sum(wanted.length for wanted in ranges)):
                self._ahead.extend(zip(ranges, read_ranges(remote, ranges), strict=True))

    @contextmanager
    def _storage(self, length: int) -> Iterator[None]:
        """Around reading so many bytes."""
        before = self.work.turn("read")
        try:
            yield
            self.work.bytes += length
        finally:
            self.work.turn(before)

    def close(self) -> None:
        """Close the files; also done when the reader is no longer used."""
        self._local.close()


def _takes_whole(part: ClipPart, whole: Range) -> bool:
    """Whether one request for a chunk with its table beats one for the table and one behind it."""
    spans = (max(part.frames) - min(part.frames) + 1) * _SHARE >= part.chunk.frames
    cached = part.chunk.remote is not None and part.chunk.remote.cache is not None
    return spans or cached or whole.length <= _SMALL


def _joined(ranges: list[Range]) -> list[Range]:
    """Ranges of neighbouring chunks as one."""
    found: list[Range] = []
    for wanted in sorted(ranges, key=lambda r: (r.file, r.offset)):
        last = found[-1] if found else None
        if last and last.file == wanted.file:
            length = wanted.offset + wanted.length - last.offset
            if wanted.offset - last.offset - last.length <= _BESIDE and length <= _WHOLE:
                found[-1] = replace(last, length=length)
                continue
        found.append(wanted)
    return found
