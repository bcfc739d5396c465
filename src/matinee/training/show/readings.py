"""What a run has told so far, and what follows from it: time left, trend, best validation."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# What a row says besides the loss and the task's own sums (top1 and others).
_KNOWN = {
    "kind", "step", "epoch", "loss", "lr", "clips", "clips_per_s", "masked", "spans", "grad_norm",
    "noise_scale", "memory_gib", "world", "skipped", "loss_scale",
}  # fmt: skip

_RECENT_ROWS = 20
_POINTS = 512


@dataclass(frozen=True)
class Validation:
    """The headline metric after an epoch."""

    value: float
    epoch: float


class Readings:
    """Takes what `Progress` is told. `clock` gives seconds.

    Attributes are replaced, never changed in place, so that another thread may read them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.total, self.headline = 0, ""
        self.epochs: int | None = None
        self.row: dict[str, Any] | None = None
        self.last_val: Validation | None = None
        self.best_val: Validation | None = None
        self.saved: tuple[int, float] | None = None
        self.masked = 0
        self.epochs_a_step = 0.0
        self.seconds_a_step: float | None = None
        self._began: float | None = None
        self._trained = 0.0
        self._windows: deque[tuple[float, int]] = deque(maxlen=_RECENT_ROWS)
        self._losses: tuple[float, ...] = ()
        self._points_a_mean, self._pending = 1, list[float]()

    def start(self, *, total: int, headline: str, epochs: int | None) -> None:
        self.total, self.headline, self.epochs = total, headline, epochs
        self.epochs_a_step = (epochs or 0) / max(total, 1)

    def log(self, row: dict[str, Any]) -> None:
        now, seconds = self.clock(), row["clips"] / max(row["clips_per_s"], 1e-9)
        if self._began is None:
            self._began = now - seconds
        self._trained += seconds
        if self.row is not None:
            steps = row["step"] - self.row["step"]
            self._windows.append((seconds, steps))
            self.epochs_a_step = (row["epoch"] - self.row["epoch"]) / max(steps, 1)
            spent, done = (sum(column) for column in zip(*self._windows, strict=True))
            # Validation and saves take their share of the time that is left, too.
            pauses = max(1.0, (now - self._began) / max(self._trained, 1e-9))
            self.seconds_a_step = pauses * spent / max(done, 1)
        self.masked = row["masked"]
        self._add_loss(row["loss"])
        self.row = row

    def validated(self, row: dict[str, Any]) -> bool:
        """Take a row of validation; True if it is the best so far."""
        val = Validation(float(row[self.headline]), row["epoch"])
        best, lower_is_better = self.best_val, self.headline.endswith("loss")
        if best is None and row.get("best"):  # a run that goes on had validations before
            best = Validation(row["best"]["value"], row["best"]["epoch"])
        is_best = (
            best is None
            or best == val
            or (val.value < best.value if lower_is_better else val.value > best.value)
        )
        self.last_val, self.best_val = val, val if is_best else best
        return is_best

    def note_saved(self, step: int) -> None:
        self.saved = (step, self.clock())

    def seconds_left(self, step: int) -> float | None:
        """Of the whole run, by the speed of the last rows; None before there are two."""
        if self.seconds_a_step is None:
            return None
        return self.seconds_a_step * max(0, self.total - step)

    def epoch_at(self, step: int) -> float:
        """Epochs done after `step` steps, between rows by their distance."""
        if self.row is None:
            return step * self.epochs_a_step
        return float(self.row["epoch"] + (step - self.row["step"]) * self.epochs_a_step)

    def waiting(self) -> float | None:
        """Which part of the measured time went into waiting for data; None if none is measured."""
        spans: dict[str, float] = self.row["spans"] if self.row is not None else {}
        busy = sum(spans.values())
        return spans.get("data_wait", 0.0) / busy if busy else None

    def sums(self) -> dict[str, float]:
        """The task's own figures of the last row, such as top1."""
        row = self.row or {}
        return {
            name: value for name, value in row.items()
            if name not in _KNOWN and isinstance(value, (int, float))
        }  # fmt: skip

    def losses(self, count: int) -> list[float]:
        """The loss from the first row to the last, as at most `count` means of equally many rows
        (the last of them of fewer).
        """
        every = max(1, math.ceil(len(self._losses) / max(count, 1)))
        parts = (self._losses[i : i + every] for i in range(0, len(self._losses), every))
        return [sum(part) / len(part) for part in parts]

    def _add_loss(self, loss: float) -> None:
        """Keep a bounded number of points, however long the run: pairs are joined as it grows."""
        self._pending.append(loss)
        if len(self._pending) == self._points_a_mean:
            self._losses = (*self._losses, sum(self._pending) / len(self._pending))
            self._pending = []
        if len(self._losses) == _POINTS:
            pairs = zip(self._losses[::2], self._losses[1::2], strict=True)
            self._losses = tuple((a + b) / 2 for a, b in pairs)
            self._points_a_mean *= 2
