"""H.264 and HEVC: headers of NAL units (ITU-T Rec. H.264 §7.3.1, H.265 §7.3.1.2)."""

from __future__ import annotations

from matinee.media.units.picture import Bits, OutOfBits, Picture

_HEADER_BYTES = 64  # of a unit that are looked at
_MAX_UNITS = 4096  # in one packet: more is no video


class H264:
    """A key is an IDR picture; disposable: `nal_ref_idc` is 0 in all slices (§7.4.1).

    Recovery points (§D.2.8) are no keys, not even exact ones: pictures behind them still list
    older references, which FFmpeg reports missing, used or not.
    """

    def __init__(self, extradata: bytes) -> None:
        # avcC (ISO/IEC 14496-15 §5.3.3): byte 0 is 1, the low bits of byte 4 the length size.
        is_avcc = len(extradata) > 4 and extradata[0] == 1
        self._length_size = (extradata[4] & 3) + 1 if is_avcc else 0

    def read(self, payload: bytes) -> Picture:
        units = split_units(payload, self._length_size)
        if units is None:
            return Picture()
        slices = [unit for unit in units if 1 <= unit[0] & 31 <= 5]
        if not slices:
            return Picture(shown=0)
        kinds = {_slice_kind(unit) for unit in slices if unit[0] & 31 in (1, 2, 5)}
        key = all(unit[0] & 31 == 5 for unit in slices)
        return Picture(
            key=key,
            disposable=not key and all(unit[0] >> 5 & 3 == 0 for unit in slices),
            backward=1 in kinds or None in kinds,
        )


def _slice_kind(unit: bytes) -> int | None:
    """slice_type modulo 5: 0 P, 1 B, 2 I, 3 SP, 4 SI; None if it cannot be read."""
    bits = Bits(unescaped(unit[1:]))
    try:
        bits.golomb()  # first_mb_in_slice
        return bits.golomb() % 5
    except OutOfBits:
        return None


class HEVC:
    """A key is an IRAP picture: IDR, CRA or BLA (§7.4.2.2).

    The pictures that lead a CRA may need what came before it, but those are shown before it.
    Disposable: a sub-layer non-reference picture; pictures of higher sub-layers may still use it.
    A RASL picture of a CRA that decoding had to start from is never shown (§8.1.3).
    """

    def __init__(self, extradata: bytes) -> None:
        # hvcC (ISO/IEC 14496-15 §8.3.3): the low bits of byte 21 are the length size. FFmpeg's
        # rule to tell it from Annex B.
        is_hvcc = len(extradata) > 22 and (extradata[0] or extradata[1] or extradata[2] > 1)
        self._length_size = (extradata[21] & 3) + 1 if is_hvcc else 0
        self._starts = True  # the next picture begins a sequence: the first, or after its end
        self._skips_rasl = True

    def read(self, payload: bytes) -> Picture:
        units = split_units(payload, self._length_size)
        if units is None:
            return Picture()
        kinds: set[int] = set()
        pictures, layer = 0, 0
        for unit in units:
            if len(unit) < 3 or (unit[0] & 1) << 5 | unit[1] >> 3:
                continue  # too short, or of another view
            kind = unit[0] >> 1 & 63
            if kind in (36, 37):  # end of sequence, of bit stream
                self._starts = True
            elif kind < 32:
                if not kinds:
                    self._begin(kind)
                kinds.add(kind)
                pictures += unit[2] >> 7  # first_slice_segment_in_pic_flag
                layer = (unit[1] & 7) - 1
        if not kinds:
            return Picture(shown=0)
        rasl = bool(kinds & {8, 9})
        return Picture(
            key=kinds <= set(range(16, 22)),
            disposable=kinds <= set(range(0, 16, 2)),
            shown=0 if rasl and self._skips_rasl else pictures,
            layer=max(layer, 0),
        )

    def _begin(self, kind: int) -> None:
        """Note whether the leading pictures of this random access point will be shown."""
        if 16 <= kind <= 23:
            self._skips_rasl = self._starts or 16 <= kind <= 18
        if kind not in (8, 9):
            self._starts = False


def split_units(payload: bytes, length_size: int) -> list[bytes] | None:
    """The first bytes of each NAL unit; None if the packet is damaged.

    `length_size` bytes of length come before each unit; 0 means start codes (Annex B).
    """
    units: list[bytes] = []
    at = 0
    if length_size:
        while at < len(payload) and len(units) < _MAX_UNITS:
            start = at + length_size
            at = start + int.from_bytes(payload[at:start], "big")
            if at > len(payload) or start > len(payload):
                return None
            if at > start:
                units.append(payload[start : min(at, start + _HEADER_BYTES)])
    else:
        at = payload.find(b"\0\0\1")
        while 0 <= at < len(payload) - 3 and len(units) < _MAX_UNITS:
            start = at + 3
            at = payload.find(b"\0\0\1", start)
            end = min(at if at >= 0 else len(payload), start + _HEADER_BYTES)
            if end > start:
                units.append(payload[start:end])
    return None if len(units) == _MAX_UNITS else units


def unescaped(unit: bytes) -> bytes:
    """Without emulation prevention: 00 00 03 stands for 00 00 (§7.4.1)."""
    return unit.replace(b"\0\0\3", b"\0\0")
