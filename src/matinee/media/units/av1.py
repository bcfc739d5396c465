"""AV1: OBUs, sequence and frame headers (AV1 Bitstream & Decoding Process Specification §5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from matinee.media.units.picture import Bits, OutOfBits, Picture

_SEQUENCE, _FRAME_HEADER, _FRAME = 1, 3, 6
_MAX_OBUS = 4096
_KEY, _SWITCH = 0, 3
_SELECT = 2


class AV1:
    """A key is a packet that begins with a key frame that is shown.

    A key frame that is shown later (a forward key frame) is not one: frames between may refer to
    what came before. Disposable: no frame in the packet refreshes a reference; all that AV1 keeps
    from frame to frame lies in those. Showing a frame again may refresh all, and costs no
    decoding: it is not disposable.
    """

    def __init__(self, extradata: bytes) -> None:
        self._sequence: _Sequence | None = None
        # av1C (AV1 Codec ISO Media File Format Binding §2.3): 4 bytes, then OBUs.
        obus = extradata[4:] if extradata[:1] == b"\x81" else extradata
        try:
            for kind, _, body in _obus(obus):
                if kind == _SEQUENCE:
                    self._sequence = _read_sequence(body)
        except OutOfBits:
            pass

    def read(self, payload: bytes) -> Picture:
        frames: list[_Frame] = []
        layer = 0
        try:
            for kind, extension, body in _obus(payload):
                if kind == _SEQUENCE:
                    self._sequence = _read_sequence(body)
                elif kind in (_FRAME_HEADER, _FRAME):
                    if self._sequence is None:
                        return Picture()
                    frames.append(_read_frame(Bits(body), self._sequence, extension))
                    layer = extension >> 5
        except OutOfBits:
            return Picture()
        if not frames:
            return Picture(shown=0)
        return Picture(
            key=frames[0].kind == _KEY and frames[0].shown and not frames[0].existing,
            disposable=not any(frame.refreshes or frame.existing for frame in frames),
            shown=sum(frame.shown for frame in frames),
            layer=layer,
        )


@dataclass
class _Sequence:
    """What frame headers need to know (§5.5.1)."""

    reduced: bool
    temporal_point_bits: int = 0  # 0: frames carry none
    removal_bits: int = 0
    operating_points: list[tuple[int, bool]] = field(default_factory=list)  # idc, has a model
    has_model: bool = False
    frame_id_bits: int = 0
    screen_tools: int = _SELECT
    integer_mv: int = _SELECT
    order_hint_bits: int = 0


def _read_sequence(body: bytes) -> _Sequence:
    bits = Bits(body)
    bits.read(3 + 1)  # profile, still_picture
    sequence = _Sequence(reduced=bits.flag())
    if sequence.reduced:
        return sequence
    delay_bits, equal_interval = 0, True
    if bits.flag():  # timing_info
        bits.read(64)
        equal_interval = bits.flag()
        if equal_interval:
            bits.golomb()
        sequence.has_model = bits.flag()
        if sequence.has_model:
            delay_bits = bits.read(5) + 1
            bits.read(32)
            sequence.removal_bits = bits.read(5) + 1
            presentation_bits = bits.read(5) + 1
            sequence.temporal_point_bits = 0 if equal_interval else presentation_bits
    has_display_delay = bits.flag()
    for _ in range(bits.read(5) + 1):
        idc = bits.read(12)
        if bits.read(5) > 7:
            bits.read(1)  # tier
        modelled = sequence.has_model and bits.flag()
        if modelled:
            bits.read(2 * delay_bits + 1)
        sequence.operating_points.append((idc, modelled))
        if has_display_delay and bits.flag():
            bits.read(4)
    width_bits, height_bits = bits.read(4) + 1, bits.read(4) + 1
    bits.read(width_bits + height_bits)
    if bits.flag():  # frame_id_numbers_present
        delta = bits.read(4) + 2
        sequence.frame_id_bits = bits.read(3) + delta + 1
    bits.read(3 + 4)  # block size, two intra tools; interintra, masked, warped, dual filter
    has_order_hint = bits.flag()
    if has_order_hint:
        bits.read(2)
    sequence.screen_tools = _SELECT if bits.flag() else bits.read(1)
    if sequence.screen_tools:
        sequence.integer_mv = _SELECT if bits.flag() else bits.read(1)
    if has_order_hint:
        sequence.order_hint_bits = bits.read(3) + 1
    return sequence


@dataclass(frozen=True)
class _Frame:
    kind: int
    shown: bool
    existing: bool
    refreshes: int


def _read_frame(bits: Bits, sequence: _Sequence, extension: int) -> _Frame:
    """The frame header as far as refresh_frame_flags (§5.9.2)."""
    if sequence.reduced:
        return _Frame(_KEY, True, False, 0xFF)
    if bits.flag():  # show_existing_frame
        return _Frame(-1, True, True, 0)
    kind, shown = bits.read(2), bits.flag()
    if shown:
        bits.read(sequence.temporal_point_bits)
    else:
        bits.read(1)  # showable_frame
    if kind == _SWITCH or (kind == _KEY and shown):
        return _Frame(kind, shown, False, 0xFF)
    resilient = bits.flag()
    bits.read(1)  # disable_cdf_update
    screen = bits.flag() if sequence.screen_tools == _SELECT else sequence.screen_tools
    if screen and sequence.integer_mv == _SELECT:
        bits.read(1)
    bits.read(sequence.frame_id_bits + 1)  # and frame_size_override_flag
    bits.read(sequence.order_hint_bits)
    intra = kind in (_KEY, 2)
    if not (intra or resilient):
        bits.read(3)  # primary_ref_frame
    if sequence.has_model and bits.flag():  # buffer_removal_time_present
        temporal, spatial = extension >> 5, extension >> 3 & 3
        for idc, modelled in sequence.operating_points:
            if modelled and (not idc or (idc >> temporal & 1 and idc >> spatial + 8 & 1)):
                bits.read(sequence.removal_bits)
    return _Frame(kind, shown, False, bits.read(8))


def _obus(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(type, extension byte, first bytes of the body) of each OBU (§5.3)."""
    at = 0
    for _ in range(_MAX_OBUS):
        if at >= len(data):
            return
        header = data[at]
        at += 1
        extension = 0
        if header & 4:
            if at >= len(data):
                raise OutOfBits
            extension = data[at]
            at += 1
        size = len(data) - at
        if header & 2:
            size, at = _leb128(data, at)
        if header & 0x80 or at + size > len(data):
            raise OutOfBits
        yield header >> 3 & 15, extension, data[at : at + min(size, 256)]
        at += size
    raise OutOfBits


def _leb128(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for number in range(8):
        if at + number >= len(data):
            break
        byte = data[at + number]
        value |= (byte & 0x7F) << 7 * number
        if not byte & 0x80:
            return value, at + number + 1
    raise OutOfBits
