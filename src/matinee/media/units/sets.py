"""Parameter sets of H.264 and HEVC inside packets."""

from __future__ import annotations

from collections.abc import Iterator

import av

from matinee.errors import MediaError


class ParameterSets:
    """Watches that the parameter sets inside packets are those that a decoder starts with.

    Whoever starts at a key has only the sets of the file's header; one that was sent on the way,
    before that key, would be missing (ITU-T Rec. H.264 §7.4.1.2.1, H.265 §7.4.2.4.2).
    """

    def __init__(self, codec: str, extradata: bytes) -> None:
        self._extradata = extradata
        self._h264 = codec == "h264"
        self.watched = codec in ("h264", "hevc")
        self._length = 0
        if self._h264 and extradata[:1] == b"\1" and len(extradata) > 4:
            self._length = (extradata[4] & 3) + 1
        elif not self._h264 and len(extradata) > 22 and extradata[:3] not in (b"\0\0\0", b"\0\0\1"):
            self._length = (extradata[21] & 3) + 1
        self._known: set[bytes] = set()

    def check(self, packet: av.Packet[av.VideoStream]) -> bool:
        """Whether nothing but an IDR picture starts here: other entry points of H.264 take time.

        Raises:
            MediaError: the packet carries a set that the header does not hold.
        """
        if not self.watched:
            return True
        idr = not self._h264
        # Most files have lengths before the units; their packets need not be copied.
        data = memoryview(packet) if self._length else bytes(packet)
        for first, end in self._units(data):
            kind = data[first] & 31 if self._h264 else data[first] >> 1 & 63
            if kind in ((7, 8) if self._h264 else (32, 33, 34)):
                unit = bytes(data[first:end])
                if unit not in self._known and unit.rstrip(b"\0") not in self._extradata:
                    raise MediaError("changes its parameter sets on the way")
                self._known.add(unit)
            idr |= kind == 5
        return idr

    def one_sequence(self, data: bytes) -> None:
        """Watch that all sequence parameter sets inside packets are one: size, colours and order
        of pictures are then the same from wherever one starts.

        Raises:
            MediaError: another one than before.
        """
        if not self.watched:
            return
        for first, end in self._units(data):
            kind = data[first] & 31 if self._h264 else data[first] >> 1 & 63
            if kind == (7 if self._h264 else 33):
                unit = data[first:end].rstrip(b"\0")
                if unit not in self._known and self._known:
                    raise MediaError("changes its sequence parameter set midway: pack it")
                self._known.add(unit)

    def _units(self, data: bytes | memoryview) -> Iterator[tuple[int, int]]:
        """Where each unit begins and ends; none is empty."""
        at, size, length = 0, len(data), self._length
        if length:
            while at + length < size:
                first = at + length
                at = first + int.from_bytes(data[at:first], "big")
                yield first, min(at, size)
            return
        assert isinstance(data, bytes)
        at = data.find(b"\0\0\1")
        while 0 <= at < size - 3:
            end = data.find(b"\0\0\1", at + 3)
            yield at + 3, end if end >= 0 else size
            at = end
