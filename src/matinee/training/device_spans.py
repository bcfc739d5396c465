"""Spans of a GPU's time: the host only gives it work, and is done before the GPU begins.

# Note [Time on the device]
At each turn from one stretch to another, an event goes into the stream that computes. Between two
events lies what the device did, and what it waited for: "data_wait" is not how long the host
waited, but how long the device had nothing to do meanwhile, which is nothing as long as the host is
ahead. Stretches add up to the device's time, as they do on a CPU to the host's.

Nobody waits for events: they are read when `take` is called, which is when a log line waits for the
device anyway, and before that as far as the device has come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch

from matinee.spans import Pulse, Spans

_MANY = 2048  # events that are kept before those are read that the device has passed


class Event(Protocol):
    """A moment on the device, as `torch.cuda.Event` is one."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end: Any) -> float:
        """Milliseconds."""


class DeviceSpans(Spans):
    """`Spans` of what a device does. See Note [Time on the device].

    `record` is told times of the host's clock.

    Args:
        mark: puts an event into the stream that computes.
    """

    def __init__(
        self, mark: Callable[[], Event], *, on: bool = True, pulse: Pulse | None = None
    ) -> None:
        super().__init__(on=on, pulse=pulse)
        self._mark = mark
        self._marks: list[tuple[str, Event]] = []  # each with the stretch that it ends
        self._clock: tuple[float, Event] | None = None  # one moment on both clocks, for `record`

    def cut(self) -> Callable[[], dict[str, float]]:
        self._turn()
        seconds, self._seconds = self._seconds, {}
        marks, self._marks = self._marks, self._marks[-1:]

        def told() -> dict[str, float]:
            marks[-1][1].synchronize()
            self._add_up(marks, seconds)
            marks[:-1] = []
            return seconds

        return told

    def _turn(self) -> None:
        event = self._mark()
        if self.record is not None and self._clock is None:
            event.synchronize()
            self._clock = (time.monotonic(), event)
        self._marks.append((self._names[-1] if self._names else "", event))
        if len(self._marks) > _MANY:
            passed = 0
            while passed < len(self._marks) - 1 and self._marks[passed][1].query():
                passed += 1
            if passed:
                self._add_up(self._marks[:passed], self._seconds)
                self._marks = self._marks[passed - 1 :]

    def _add_up(self, marks: Sequence[tuple[str, Event]], seconds: dict[str, float]) -> None:
        """Between events that the device has passed."""
        for (_, begin), (name, end) in pairwise(marks):
            spent = begin.elapsed_time(end) / 1000
            seconds[name] = seconds.get(name, 0.0) + spent
            if self.record is not None and self._clock is not None:
                known, event = self._clock
                at = known + event.elapsed_time(end) / 1000
                # Moves on, for times between events are told in few digits.
                self._clock = (at, end)
                if name:
                    self.record(name, at - spent, at)


def spans_on(device: torch.device, *, on: bool = True, pulse: Pulse | None = None) -> Spans:
    """Spans that measure what this device does."""
    if device.type != "cuda":
        return Spans(on=on, pulse=pulse)

    def mark() -> Event:
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        found: Event = event
        return found

    return DeviceSpans(mark, on=on, pulse=pulse)
