"""MPEG-4 part 2 (ISO/IEC 14496-2 §6.2) and MPEG-1/2 video (ISO/IEC 13818-2 §6.2)."""

from __future__ import annotations

from collections.abc import Iterator

from matinee.media.units.picture import Bits, OutOfBits, Picture

_MAX_CODES = 65_536  # start codes in one packet


class MPEG4:
    """A key is an I-VOP, if its layer's header is known; a B-VOP is disposable.

    A VOP that is not coded gives no frame. Several VOPs in a packet ("packed" B-frames of AVI
    files) give several.
    """

    def __init__(self, extradata: bytes) -> None:
        self._time_bits: int | None = None
        for code, unit in start_codes(extradata):
            self._note(code, unit)

    def _note(self, code: int, unit: bytes) -> None:
        if 0x20 <= code <= 0x2F:  # video_object_layer
            try:
                self._time_bits = _time_bits(unit)
            except OutOfBits:
                self._time_bits = None

    def read(self, payload: bytes) -> Picture:
        kinds: list[int] = []
        coded = 0
        for code, unit in start_codes(payload):
            self._note(code, unit)
            if code != 0xB6:
                continue
            try:
                bits = Bits(unit, 64)
                kinds.append(bits.read(2))
                while bits.flag():  # modulo_time_base: whole seconds
                    pass
                bits.read(1 + (self._time_bits or 1) + 1)
                coded += bits.flag()
            except OutOfBits:
                return Picture()
        if not kinds:
            return Picture(shown=0)
        if self._time_bits is None:
            return Picture()
        return Picture(
            key=kinds == [0] and coded == 1,
            disposable=kinds == [2] and coded == 1,
            shown=coded,
            backward=kinds[0] == 2,
        )


def _time_bits(unit: bytes) -> int:
    """Bits of vop_time_increment, from the video object layer's header (§6.2.3)."""
    bits = Bits(unit)
    bits.read(1 + 8)  # random_accessible_vol, type
    version = 1
    if bits.flag():  # is_object_layer_identifier
        version = bits.read(4)
        bits.read(3)
    if bits.read(4) == 15:  # extended pixel aspect
        bits.read(16)
    if bits.flag():  # vol_control_parameters
        bits.read(3)
        if bits.flag():  # vbv_parameters
            bits.read(79)
    if bits.read(2) == 3 and version != 1:  # grayscale shape
        bits.read(4)
    bits.read(1)
    return max(1, (bits.read(16) - 1).bit_length())


class MPEG2:
    """A key is an I-picture with its sequence header; a B-picture is disposable.

    Not disposable: a B-picture that brings quantiser matrices, for they last.
    """

    def __init__(self, extradata: bytes) -> None:
        del extradata  # a key needs the sequence header beside it, which resets the matrices

    def read(self, payload: bytes) -> Picture:
        has_sequence, has_matrix = False, False
        kinds: list[int] = []
        fields = 0
        for code, unit in start_codes(payload):
            if code == 0xB3 and not kinds:
                has_sequence = True
            elif code == 0x00:
                if len(unit) < 2:
                    return Picture()
                kinds.append(unit[1] >> 3 & 7)
                fields += 2
            elif code == 0xB5 and unit and kinds:
                has_matrix |= unit[0] >> 4 == 3
                if unit[0] >> 4 == 8 and len(unit) > 2 and unit[2] & 3 != 3:
                    fields -= 1  # the picture is one field
        if not kinds:
            return Picture(shown=0)
        return Picture(
            key=has_sequence and kinds[0] == 1,
            disposable=set(kinds) == {3} and not has_matrix,
            shown=(fields + 1) // 2,
            backward=kinds[0] == 3,
        )


def start_codes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(code, up to 255 bytes behind it) of each 00 00 01 xx."""
    at = data.find(b"\0\0\1")
    for _ in range(_MAX_CODES):
        if not 0 <= at < len(data) - 3:
            return
        following = data.find(b"\0\0\1", at + 3)
        end = following if following >= 0 else len(data)
        yield data[at + 3], data[at + 4 : min(end, at + 260)]
        at = following
