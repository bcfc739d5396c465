"""What reading and decoding took: seconds by kind, and how much was done. A clip at a time."""

from __future__ import annotations

from time import monotonic
from typing import Literal, NamedTuple

Kind = Literal["", "read", "decode", "scale"]
"""Waiting for storage; checking and feeding packets, receiving frames; cropping and scaling into
memory. "" is everything else."""


class Stretch(NamedTuple):
    """A stretch of one kind, seconds of CLOCK_MONOTONIC."""

    kind: Kind
    begin: float
    end: float


class Work:
    """Adds up what a reader or decoder does. Kinds take turns: one ends where another begins.

    Args:
        stretches: keep also when each began and ended, for a trace.
    """

    def __init__(self, *, stretches: bool = False) -> None:
        self.bytes = self.packets = self.frames_decoded = self.frames_used = 0
        self.seconds: dict[Kind, float] = {"read": 0.0, "decode": 0.0, "scale": 0.0}
        self.stretches: list[Stretch] | None = [] if stretches else None
        self._kind: Kind = ""
        self._since = 0.0

    def turn(self, to: Kind) -> Kind:
        """From now on it is another kind; returns which one it was, to turn back to."""
        now, before = monotonic(), self._kind
        if before:
            self.seconds[before] += now - self._since
            if self.stretches is not None:
                self.stretches.append(Stretch(before, self._since, now))
        self._kind, self._since = to, now
        return before
