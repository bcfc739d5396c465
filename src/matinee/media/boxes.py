"""What the boxes of an MP4 or MOV file claim, looked at before FFmpeg makes room for it.

# Note [Claims]
A box of twenty bytes can say that a track has a hundred million samples, and FFmpeg then allocates
four gigabytes and spends a minute filling them. Samples lie in the file, so what they claim is
bounded by its size. An edit list has FFmpeg fill its index once more with every edit. Uncompressed
sound has a sample for every tick of its clock, but is indexed in pieces of a thousand.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from matinee.errors import MediaError

_PARENTS = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"moof", b"traf"}
_FIRST = {b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp", b"sidx", b"moof"}
_MOST_EDITED = 20_000_000  # entries of an index, counted as often as edits might show them
_LOOKED_AT = {b"stsz", b"trun", b"elst", b"hdlr", b"stts", b"stco", b"co64"}
_PIECE = 1024  # samples of uncompressed sound in an entry


def check_claims(file: BinaryIO, length: int) -> None:
    """Refuse an MP4 or MOV whose samples cannot lie in its `length` bytes; leave others alone.

    Raises:
        MediaError: it claims more samples than it has room for.
    Source: ISO/IEC 14496-12 §8.7.3 (stsz), §8.8.8 (trun), §8.6.6 (elst), §8.4.3
        (hdlr), §8.6.1.2 (stts). See Note [Claims].
    """
    file.seek(0)
    if file.read(8)[4:] not in _FIRST:
        return
    fragments, track = 0, _Track()
    for kind, body in _boxes(file, length):
        if kind == b"trak":
            track.check(length)
            track = _Track()
        if kind not in _LOOKED_AT:
            continue
        file.seek(body)
        data = file.read(16)
        if len(data) < 12:
            continue
        first, second, third = struct.unpack(">4xIII", data.ljust(16, b"\0"))
        if kind == b"trun":
            fragments += first
            _check(fragments <= length, fragments, length)
        elif kind == b"stsz":
            # One size for all and a count, or 0 and a table of sizes.
            _check(second * max(1, first) <= length, second, length)
            track.samples = max(track.samples, second)
        elif kind == b"elst":
            track.edits = max(track.edits, first)
        elif kind == b"hdlr":
            track.handlers.add(data[8:12])
        elif kind == b"stts":
            track.durations.add((first, third))
        else:
            track.chunks = max(track.chunks, first)
    track.check(length)


@dataclass
class _Track:
    samples: int = 0
    chunks: int = 0
    edits: int = 0
    handlers: set[bytes] = field(default_factory=set)
    durations: set[tuple[int, int]] = field(default_factory=set)  # rows of a table, the first one

    def check(self, length: int) -> None:
        sound = b"soun" in self.handlers and b"vide" not in self.handlers
        in_pieces = sound and self.durations == {(1, 1)}
        entries = self.samples // _PIECE + self.chunks if in_pieces else self.samples
        edited = self.edits * entries
        _check(self.edits < 3 or edited <= _MOST_EDITED, edited, length)


def _check(holds: bool, samples: int, length: int) -> None:
    if not holds:
        raise MediaError(f"is damaged: it claims {samples} samples in {length} bytes")


def _boxes(file: BinaryIO, length: int) -> Iterator[tuple[bytes, int]]:
    """Kind and place of the content of every box, parents before their children."""
    ends = [length]  # of the boxes that we are in
    at = 0
    while ends:
        if at + 8 > ends[-1]:
            at = ends.pop()
            continue
        file.seek(at)
        header = file.read(16)
        if len(header) < 8:
            return
        size, kind = struct.unpack(">I4s", header[:8])
        body = at + 8
        if size == 1 and len(header) == 16:
            (size,) = struct.unpack(">Q", header[8:])
            body = at + 16
        stop = ends[-1] if size == 0 else at + size
        if stop < body:
            at = ends.pop()  # damaged: what follows in this parent is unknown
            continue
        yield kind, body
        if kind in _PARENTS:
            ends.append(min(stop, ends[-1]))
            at = body
        else:
            at = stop
