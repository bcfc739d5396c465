"""Named stretches of time inside a loop: where a step goes."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol


class Pulse(Protocol):
    """How far a process is: plain attributes that somebody may look at from another thread."""

    arrivals: int
    """How often it has come to where all ranks meet."""
    step: int
    phase: str
    """The stretch entered last."""


@dataclass
class OwnPulse:
    """A pulse that nobody watches."""

    arrivals: int = 0
    step: int = 0
    phase: str = "start"


class Spans:
    """Adds up wall-clock seconds by name between two calls of `take`.

    Off, nothing is measured, but `pulse` still learns the phase.
    """

    def __init__(self, *, on: bool = True, pulse: Pulse | None = None) -> None:
        self.on, self.pulse = on, pulse or OwnPulse()
        self._seconds: dict[str, float] = {}

    def __call__(self, name: str) -> AbstractContextManager[None]:
        self.pulse.phase = name
        return _Span(self._seconds, name) if self.on else _NOTHING

    def take(self) -> dict[str, float]:
        """Seconds by name since the last call."""
        taken = dict(self._seconds)
        self._seconds.clear()
        return taken


_NOTHING = nullcontext()


class _Span:
    """One stretch. A class, for it costs a third of what a generator does."""

    __slots__ = ("_begin", "_name", "_seconds")

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        spent = time.perf_counter() - self._begin
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + spent
