"""Named stretches of time inside a loop: where a step goes.

# Note [Stretches]
Stretches lie within each other, such as "h2d" in "data_wait" where a loader takes the batch to the
device. Each second counts once, for the innermost: what is taken never adds up to more than went
by. `split` gives the rest of a stretch another name while it lasts; so the end of a backward pass,
in which a rank only waits for the gradients of others, counts as "comm".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

Record = Callable[[str, float, float], None]
"""Told the name, begin and end of each stretch, in seconds of CLOCK_MONOTONIC."""


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
    """Adds up seconds by name between two calls of `take`. See Note [Stretches].

    Off, nothing is measured, but `pulse` still learns the phase. `record`, if set, is told of each
    stretch, for a trace.
    """

    def __init__(self, *, on: bool = True, pulse: Pulse | None = None) -> None:
        self.on, self.pulse = on, pulse or OwnPulse()
        self.record: Record | None = None
        self._names: list[str] = []  # of the stretches that are open, the innermost last
        self._seconds: dict[str, float] = {}
        self._since = time.monotonic()

    def __call__(self, name: str) -> AbstractContextManager[None]:
        self.pulse.phase = name
        return _Span(self, name) if self.on else _NOTHING

    def split(self, name: str, to: str) -> None:
        """The rest of the innermost stretch counts as `to`, if it is `name`."""
        if self._names and self._names[-1] == name:
            self._turn()
            self._names[-1] = to

    def take(self) -> dict[str, float]:
        """Seconds by name since the last call, of stretches alone."""
        taken = self.cut()()
        taken.pop("", None)
        return taken

    def cut(self) -> Callable[[], dict[str, float]]:
        """As `take`, told when it is asked for; "" is the time between stretches.

        Cutting does not wait for a device, asking does.
        """
        self._turn()
        taken, self._seconds = self._seconds, {}
        return lambda: taken

    def _enter(self, name: str) -> None:
        self._turn()
        self._names.append(name)

    def _leave(self) -> None:
        self._turn()
        self._names.pop()

    def _turn(self) -> None:
        """What went by since the last turn was of the innermost stretch."""
        now = time.monotonic()
        name = self._names[-1] if self._names else ""
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._since
        if name and self.record is not None:
            self.record(name, self._since, now)
        self._since = now


_NOTHING = nullcontext()


class _Span:
    """One stretch. A class, for it costs a third of what a generator does."""

    __slots__ = ("_name", "_spans")

    def __init__(self, spans: Spans, name: str) -> None:
        self._spans, self._name = spans, name

    def __enter__(self) -> None:
        self._spans._enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._spans._leave()
