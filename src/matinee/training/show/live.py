"""A run as a live view on a terminal."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.box import ROUNDED
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.text import Text

from matinee.training.show.figures import age, duration, figure, rate
from matinee.training.show.plain import is_whole, say
from matinee.training.show.readings import Readings

_WIDEST = 110
_TWO_COLUMNS = 56
_RIGHT, _RIGHT_WIDE = 33, 36
_LABEL = 11
_ROWS = 4  # of figures, so that the height stays
_SPARKS = "▁▂▃▄▅▆▇█"
_QUIET_SECONDS = 10.0


class LiveView:
    """Panel at the bottom of a terminal, drawn four times a second by a thread of rich's; what
    stays (validations, notes) scrolls above it.
    """

    def __init__(
        self, console: Console, name: str = "train", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._name, self._clock = console, name.strip(), clock
        self._readings = Readings(clock)
        self._step, self._seen, self._moved = 0, -1, clock()
        self._live = Live(
            console=console, get_renderable=self.render, refresh_per_second=4, transient=True
        )

    def start(
        self, *, total: int, facts: list[str], headline: str, epochs: int | None = None
    ) -> None:
        self._readings.start(total=total, headline=headline, epochs=epochs)
        for fact in facts:
            say(self._console, f"  {fact}", style="dim")

    def step(self, step: int) -> None:
        self._step = step

    def log(self, row: dict[str, Any]) -> None:
        self._readings.log(row)

    def validated(self, row: dict[str, Any]) -> None:
        readings, headline = self._readings, self._readings.headline
        best = readings.validated(row)
        loss = f"  loss {figure(readings.row['loss'])}" if readings.row is not None else ""
        say(
            self._console,
            f"  epoch {row['epoch']:g}{loss}  validation {headline} {figure(row[headline])}"
            f"{'  best' if best else ''}",
        )

    def saved(self, step: int, seconds: float) -> None:
        self._readings.note_saved(step)

    def note(self, text: str) -> None:
        say(self._console, f"  {text}", style="yellow")

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()
        row = self._readings.row
        if row is not None:
            say(
                self._console,
                f"  step {self._step:,} of {self._readings.total:,}, epoch {row['epoch']:.4g}  "
                f"loss {figure(row['loss'])}  {rate(row['clips_per_s'])} clips/s",
            )

    def render(self) -> RenderableType:
        """The panel as it is now."""
        width = min(self._console.width, _WIDEST)
        inner = max(8, width - 4)
        body = Group(*self._bars(inner), Text(), *self._figures(inner), self._validation(inner))
        return Panel(
            body, box=ROUNDED, border_style="bright_black", title=self._title(),
            title_align="left", subtitle=self._subtitle(), subtitle_align="right", width=width,
        )  # fmt: skip

    def _title(self) -> Text:
        state = self._state()
        return Text.assemble(
            (self._name, "bold default"), (f"  {state}" if state else "", "yellow")
        )

    def _state(self) -> str:
        """What keeps the next step, once one has been waited for."""
        step, now = self._step, self._clock()
        if step != self._seen:
            self._seen, self._moved = step, now
        quiet = now - self._moved
        row = self._readings.row
        if row is not None and step == row["step"] and is_whole(row["epoch"]) and quiet > 1:
            return "end of epoch: validating, saving"
        if quiet > _QUIET_SECONDS:
            return f"no step for {duration(quiet)}" if step else "starting"
        return ""

    def _subtitle(self) -> Text | None:
        row = self._readings.row or {}
        parts = []
        if row.get("world", 1) > 1:
            parts.append((f"{row['world']} ranks", "default"))
        if self._readings.masked:
            parts.append((f"{self._readings.masked:,} clips masked", "yellow"))
        if not parts:
            return None
        between = [piece for part in parts for piece in (("  ", ""), part)][1:]
        return Text.assemble(*between)

    def _bars(self, width: int) -> list[Text]:
        """The epoch's progress and the run's, one below the other."""
        readings, step = self._readings, self._step
        epoch = readings.epoch_at(step)
        number = max(1, math.ceil(epoch - 1e-9))
        of = f" of {readings.epochs}" if readings.epochs else ""
        left = readings.seconds_left(step)
        rows = [
            (f"epoch {number}{of}", epoch - number + 1, f"{max(0.0, epoch - number + 1):.0%}"),
            (
                f"step {step:,} of {readings.total:,}", step / max(readings.total, 1),
                f"{duration(left)} left" if left is not None else "",
            ),
        ]  # fmt: skip
        before = max(len(row[0]) for row in rows) + 2
        after = max(*(len(row[2]) for row in rows), len("59 min 59 s left")) + 1
        bar = width - before - after
        lines = []
        for text, part, tail in rows:
            line = Text(text.ljust(before))
            if bar >= 8:
                line.append_text(self._bar(part, bar))
                line.append(tail.rjust(after))
            else:
                line = Text(f"{text}  {tail}")
            lines.append(_fit(line, width))
        return lines

    def _bar(self, part: float, width: int) -> Text:
        bar = ProgressBar(
            total=1.0, completed=min(1.0, max(0.0, part)), width=width, complete_style="cyan",
            finished_style="cyan", style="bright_black",
        )  # fmt: skip
        options = self._console.options.update_width(width)
        return Text.assemble(*((s.text, s.style or "") for s in self._console.render(bar, options)))

    def _figures(self, width: int) -> list[Text]:
        """Label and figure, in two columns or, where it is narrow, in one."""
        two = width >= _TWO_COLUMNS
        right_width = _RIGHT_WIDE if width >= 72 else _RIGHT
        left_width = width - right_width - 2 if two else width
        left, right = self._learning(left_width), self._machine()
        if not two:
            return [_fit(line, width) for line in (*left, *right)]
        left += [Text() for _ in range(_ROWS - len(left))]
        return [
            Text.assemble(_fit(a, left_width), "  ", _fit(b, right_width))
            for a, b in zip(left, right, strict=True)
        ]

    def _learning(self, width: int) -> list[Text]:
        row = self._readings.row
        if row is None:
            return [_label("loss", "-"), _label("lr", "-")]
        lines = [_label("loss", figure(row["loss"]).ljust(9), "bold")]
        room = width - _LABEL - 10
        if room >= 4 and not self._console.options.ascii_only:
            lines[0].append(sparks(self._readings.losses(room)), "cyan")
        lines += [_label(n, figure(v)) for n, v in list(self._readings.sums().items())[:2]]
        lines.append(_label("lr", f"{row['lr']:.3g}"))
        if "grad_norm" in row:
            lines.append(_label("grad norm", figure(row["grad_norm"])))
        return lines[:_ROWS]

    def _machine(self) -> list[Text]:
        readings = self._readings
        speed = f"{rate(readings.row['clips_per_s'])} clips/s" if readings.row else "-"
        waiting = readings.waiting()
        style = "" if waiting is None or waiting < 0.1 else "yellow" if waiting < 0.3 else "red"
        saved = readings.saved
        when = f"step {saved[0]:,}, {age(self._clock() - saved[1])}" if saved else "none yet"
        return [
            _label("speed", speed),
            _label("data wait", "-" if waiting is None else f"{waiting:.0%} of the time", style),
            _label("memory", memory()),
            _label("saved", when),
        ]

    def _validation(self, width: int) -> Text:
        readings = self._readings
        last, best = readings.last_val, readings.best_val
        if last is None or best is None:
            return _fit(_label("val", "-"), width)
        style = "green" if last == best else ""
        line = _label("val", f"{readings.headline} {figure(last.value)}", style)
        line.append(f" (epoch {last.epoch:g})")
        if last != best:
            line.append(f", best {figure(best.value)} (epoch {best.epoch:g})")
        return _fit(line, width)


def _label(name: str, value: str, style: str = "") -> Text:
    return Text.assemble((f"{name[: _LABEL - 1]:<{_LABEL}}", "bright_black"), (value, style))


def _fit(line: Text, width: int) -> Text:
    """Exactly `width` cells: cut with an ellipsis, or filled up."""
    line.truncate(width, overflow="ellipsis", pad=True)
    return line


def sparks(values: list[float]) -> str:
    """A character a value, from the lowest to the highest; of positive values the logarithm."""
    if not values:
        return ""
    if min(values) > 0:
        values = [math.log(value) for value in values]
    low, high = min(values), max(values)
    scale = (len(_SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_SPARKS[round((value - low) * scale)] for value in values)


def memory() -> str:
    """Peak of the GPU's memory, or the main memory that this process has now."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return f"{pages * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB"
    # By device: a thread's current device is not the run's.
    devices = range(torch.cuda.device_count())
    peak, device = max((torch.cuda.max_memory_allocated(d), d) for d in devices)
    whole = torch.cuda.get_device_properties(device).total_memory / 2**30
    return f"{peak / 2**30:.1f} of {whole:.0f} GiB"
