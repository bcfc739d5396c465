"""A run as plain lines: for logs, pipes and whoever likes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console

from matinee.training.show.figures import duration, figure, rate
from matinee.training.show.readings import Readings

_SECONDS = 60.0


class PlainLines:
    """A line at the end of an epoch and at least one a minute (as rows come), one for each
    validation and each note, and for checkpoints at most one a minute.
    """

    def __init__(
        self, console: Console, name: str = "train", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._name, self._clock = console, name, clock
        self._readings = Readings(clock)
        self._said = self._said_saved = -_SECONDS

    def start(
        self, *, total: int, facts: list[str], headline: str, epochs: int | None = None
    ) -> None:
        self._readings.start(total=total, headline=headline, epochs=epochs)
        self._said = self._clock()
        for fact in facts:
            say(self._console, f"  {fact}", style="dim")

    def step(self, step: int) -> None:
        pass

    def log(self, row: dict[str, Any]) -> None:
        readings = self._readings
        readings.log(row)
        ends = is_whole(row["epoch"])
        now = self._clock()
        if not ends and now - self._said < _SECONDS:
            return
        self._said = now
        place = f"epoch {row['epoch']:.0f}{_of(readings.epochs)}"
        if not ends:
            place = f"epoch {row['epoch']:.2f}{_of(readings.epochs)}, step {row['step']:,}"
        left = readings.seconds_left(row["step"])
        waiting = readings.waiting()
        parts = [
            place,
            f"loss {figure(row['loss'])}",
            *(f"{name} {figure(value)}" for name, value in readings.sums().items()),
            f"lr {row['lr']:.3g}",
            f"{rate(row['clips_per_s'])} clips/s",
            f"waiting for data {waiting:.0%}" if waiting is not None else "",
            f"masked {row['masked']}" if row["masked"] else "",
            f"{duration(left)} left" if left else "",
        ]
        self._say("  ".join(part for part in parts if part))

    def validated(self, row: dict[str, Any]) -> None:
        best = self._readings.validated(row)
        headline = self._readings.headline
        self._say(
            f"epoch {row['epoch']:g}{_of(self._readings.epochs)}  validation {headline} "
            f"{figure(row[headline])}{'  (best)' if best else ''}"
        )

    def saved(self, step: int, seconds: float) -> None:
        now = self._clock()
        if now - self._said_saved >= _SECONDS:
            self._said_saved = now
            self._say(f"checkpoint of step {step:,} ({seconds:.1f} s)")

    def note(self, text: str) -> None:
        self._say(text)

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def _say(self, text: str) -> None:
        say(self._console, f"{self._name}: {text}")


def say(console: Console, text: str, style: str = "") -> None:
    """One line of text, whatever is in it: names may hold brackets and colons."""
    console.print(text, style=style, highlight=False, soft_wrap=True, markup=False, emoji=False)


def is_whole(epoch: float) -> bool:
    """Whether a row's epoch is the end of one."""
    return abs(epoch - round(epoch)) < 1e-9


def _of(epochs: int | None) -> str:
    return f" of {epochs}" if epochs else ""
