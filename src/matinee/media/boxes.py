"""What the boxes of an MP4 or MOV file claim, looked at before FFmpeg makes room for it.

# Note [Claims]
A box of twenty bytes can say that a track has a hundred million samples, and FFmpeg then allocates
four gigabytes and spends a minute filling them. Samples lie in the file, so what they claim is
bounded by its size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from matinee.errors import MediaError

_PARENTS = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"moof", b"traf"}
_FIRST = {b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp", b"sidx", b"moof"}
_MOST_EDITED = 20_000_000  # samples, counted as often as edits might show them


def check_claims(file: BinaryIO, length: int) -> None:
    """Refuse an MP4 or MOV whose samples cannot lie in its `length` bytes; leave others alone.

    Raises:
        MediaError: it claims more samples than it has room for.
    Source: ISO/IEC 14496-12 §8.7.3 (stsz), §8.8.8 (trun), §8.6.6 (elst). See Note [Claims].
    """
    file.seek(0)
    if file.read(8)[4:] not in _FIRST:
        return
    fragments = edits = 0
    for kind, body in _boxes(file, length):
        if kind == b"trak":
            edits = 0
        if kind not in (b"stsz", b"trun", b"elst"):
            continue
        file.seek(body)
        data = file.read(12)
        if len(data) < 12:
            continue
        first, second = struct.unpack(">4xII", data)
        if kind == b"elst":
            edits = first
        elif kind == b"trun":
            fragments += first
            _check(fragments <= length, fragments, length)
        else:
            # stsz: one size for all and a count, or 0 and a table of sizes.
            _check(second * max(1, first) <= length, second, length)
            _check(edits < 3 or edits * second <= _MOST_EDITED, edits * second, length)


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
