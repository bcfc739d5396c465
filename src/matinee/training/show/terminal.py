"""What a run shows while it goes: a live bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

from typing import Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar


class Progress(Protocol):
    """Told about a run as it goes. `headline` is the validation metric that counts."""

    def start(self, *, total: int, facts: list[str], headline: str) -> None: ...
    def step(self, step: int) -> None: ...
    def log(self, row: dict[str, Any]) -> None: ...
    def validated(self, row: dict[str, Any]) -> None: ...
    def __enter__(self) -> Progress: ...
    def __exit__(self, *exc: object) -> None: ...


class Silent:
    """Shows nothing."""

    def start(self, *, total: int, facts: list[str], headline: str) -> None:
        pass

    def step(self, step: int) -> None:
        pass

    def log(self, row: dict[str, Any]) -> None:
        pass

    def validated(self, row: dict[str, Any]) -> None:
        pass

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


def progress_bar(console: Console, *fields: str, disable: bool = False) -> Bar:
    """A progress bar in matinee's manner, with extra text fields."""
    return Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        *(TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in fields),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=disable,
    )


class Terminal:
    """A live bar with loss, accuracy, rate and waiting share; on plain output one line an epoch."""

    def __init__(self, console: Console, name: str = "train") -> None:
        self._console, self._name = console, name
        self._bar = progress_bar(console, "note")
        self._task: TaskID | None = None
        self._total, self._headline = 0, ""
        self._last = ""

    def start(self, *, total: int, facts: list[str], headline: str) -> None:
        self._total, self._headline = total, headline
        for fact in facts:
            self._console.print(
                f"  {fact}", style="dim", highlight=False, soft_wrap=True, markup=False
            )

    def step(self, step: int) -> None:
        if self._task is None:
            self._task = self._bar.add_task(self._name, total=self._total, note="")
        self._bar.update(self._task, completed=step)

    def log(self, row: dict[str, Any]) -> None:
        spans = row["spans"]
        busy = sum(spans.values()) or 1.0
        waiting = spans.get("data_wait", 0.0) / busy
        right = f"top1 {row['top1']:.2f}  " if "top1" in row else ""
        self._last = (
            f"loss {row['loss']:.3f}  {right}{row['clips_per_s']:.0f} clips/s  "
            f"waiting for data {waiting:.0%}"
        )
        if row["masked"]:
            self._last += f"  masked {row['masked']}"
        if self._task is not None:
            self._bar.update(self._task, note=self._last)
        whole = round(row["epoch"])
        if not self._console.is_terminal and abs(row["epoch"] - whole) < 1e-9:
            text = f"{self._name}: epoch {whole}  {self._last}"
            self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def validated(self, row: dict[str, Any]) -> None:
        score = f"{self._headline} {row[self._headline]:.3f}"
        text = f"{self._name}: epoch {row['epoch']}  validation {score}"
        if self._console.is_terminal:
            if self._task is not None:
                self._bar.update(self._task, description=f"{self._name} val {score}")
        else:
            self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def __enter__(self) -> Terminal:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()
