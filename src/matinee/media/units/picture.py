"""What the headers of one packet tell, and a reader of their bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Picture:
    """A packet in the eyes of its codec. The defaults are the safe answer: nothing is known.

    key: decoding can start here; every frame shown from this one on then comes out exact.
    disposable: leaving the packet out changes no other frame, provided that no packet of a higher
        `layer` uses it and that the packet behind it `resets`.
    shown: frames that a decoder gives for it.
    layer: temporal sub-layer; a packet may use those of its own layer and below.
    resets: it takes nothing from the packet decoded before it but reference pictures.
    backward: a B-picture of MPEG-1, 2 or 4: shown before the reference decoded before it.
    """

    key: bool = False
    disposable: bool = False
    shown: int = 1
    layer: int = 0
    resets: bool = True
    backward: bool = False


class Headers(Protocol):
    """Reads packets in decode order; one object a video, since some headers refer to earlier."""

    def read(self, payload: bytes) -> Picture: ...


def settle(pictures: Sequence[Picture]) -> list[bool]:
    """Which packets are disposable, once all are known."""
    top = max((picture.layer for picture in pictures), default=0)
    following = [*pictures[1:], Picture()]
    return [
        picture.disposable and picture.layer == top and behind.resets
        for picture, behind in zip(pictures, following, strict=False)
    ]


class OutOfBits(Exception):
    """A header ended before its fields did, or holds a value that cannot be."""


class Bits:
    """Reads big-endian bit fields from the first bytes of a header.

    `read(n)` and `flag()` raise OutOfBits at the end.
    """

    def __init__(self, data: bytes, limit: int = 256) -> None:
        data = data[:limit]
        self._value = int.from_bytes(data, "big")
        self.left = 8 * len(data)

    def read(self, count: int) -> int:
        self.left -= count
        if self.left < 0:
            raise OutOfBits
        return self._value >> self.left & ((1 << count) - 1)

    def flag(self) -> bool:
        return self.read(1) == 1

    def golomb(self) -> int:
        """An Exp-Golomb code (ITU-T H.264 §9.1), at most 32 bits of value."""
        zeros = 0
        while not self.flag():
            zeros += 1
            if zeros > 32:
                raise OutOfBits
        return (1 << zeros) - 1 + self.read(zeros)
