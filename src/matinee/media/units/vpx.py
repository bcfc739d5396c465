"""VP8 (RFC 6386 §9.1) and VP9 (VP9 Bitstream & Decoding Process Specification §6, §7.2)."""

from __future__ import annotations

from matinee.media.units.picture import Bits, OutOfBits, Picture


class VP8:
    """Nothing is disposable: also a frame that no other refers to leaves its probabilities behind
    (refresh_entropy_probs), as libvpx writes it.
    """

    def __init__(self, extradata: bytes) -> None:
        del extradata  # VP8 has none

    def read(self, payload: bytes) -> Picture:
        if len(payload) < 4:
            return Picture(shown=0)  # an encoder's dropped frame
        return Picture(key=payload[0] & 0x11 == 0x10, shown=payload[0] >> 4 & 1)


class VP9:
    """Disposable: no frame in it refreshes a reference, and what follows is error-resilient.

    Refreshing nothing is not enough: a frame may take its motion vectors, its segments and its
    probabilities from the one decoded before, whichever that was; an error-resilient frame and a
    key frame begin with none (§7.2, setup_past_independence).
    """

    def __init__(self, extradata: bytes) -> None:
        del extradata  # vpcC describes, the frames need it not

    def read(self, payload: bytes) -> Picture:
        try:
            frames = [_vp9_frame(frame) for frame in _superframe(payload)]
        except OutOfBits:
            return Picture(resets=False)
        if not frames:
            return Picture(shown=0, resets=False)
        first = frames[0]
        return Picture(
            key=first.key and any(frame.shown for frame in frames),
            disposable=not any(frame.refreshes for frame in frames),
            shown=sum(frame.shown for frame in frames),
            resets=first.resilient or first.key,
        )


class _Frame9:
    def __init__(self, key: bool, shown: bool, resilient: bool, refreshes: int) -> None:
        self.key, self.shown = key, shown
        self.resilient, self.refreshes = resilient, refreshes


def _vp9_frame(data: bytes) -> _Frame9:
    bits = Bits(data, 32)
    if bits.read(2) != 2:
        raise OutOfBits
    profile = bits.read(1) + 2 * bits.read(1)
    if profile == 3:
        bits.read(1)
    if bits.flag():  # show_existing_frame
        return _Frame9(False, True, False, 0)
    inter, shown, resilient = bits.flag(), bits.flag(), bits.flag()
    if not inter:
        return _Frame9(True, shown, resilient, 0xFF)
    intra_only = False if shown else bits.flag()
    if not resilient:
        bits.read(2)  # reset_frame_context
    if intra_only:
        bits.read(24)  # sync code
        if profile > 0:
            _skip_color(bits, profile)
    return _Frame9(False, shown, resilient, bits.read(8))


def _skip_color(bits: Bits, profile: int) -> None:
    if profile >= 2:
        bits.read(1)  # 10 or 12 bits
    if bits.read(3) != 7:  # not RGB
        bits.read(1)  # range
        if profile in (1, 3):
            bits.read(3)  # subsampling
    elif profile in (1, 3):
        bits.read(1)


def _superframe(payload: bytes) -> list[bytes]:
    """The frames of a packet (Annex B of the specification)."""
    last = payload[-1] if payload else 0
    if last & 0xE0 == 0xC0:
        count, width = (last & 7) + 1, (last >> 3 & 3) + 1
        index = payload[-(2 + count * width) :]
        if len(index) == 2 + count * width and index[0] == last:
            frames, at = [], 0
            for number in range(count):
                field = index[1 + number * width : 1 + (number + 1) * width]
                size = int.from_bytes(field, "little")
                if at + size > len(payload) - len(index):
                    raise OutOfBits
                if size:
                    frames.append(payload[at : at + min(size, 32)])
                at += size
            return frames
    return [payload[:32]] if payload else []
