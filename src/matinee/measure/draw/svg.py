"""Small plots as inline SVG, written by hand: marks that carry what they are of, in the page's
colours. For curves and matrices, `plots` has matplotlib draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matinee.measure.draw.page import text


@dataclass(frozen=True)
class Scale:
    """Where values lie between 0 and 1: evenly, evenly in the logarithm, or one after the other."""

    low: float = 0.0
    high: float = 1.0
    log: bool = False
    names: tuple[str, ...] = ()

    def place(self, value: Any) -> float:
        """Of a number, or of one of `names`."""
        if self.names:
            return (self.names.index(value) + 0.5) / len(self.names)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return float((value - self.low) / (self.high - self.low))

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """Places and what to write there."""
        if self.names:
            return [(self.place(name), name) for name in self.names]
        if self.log:
            return [(self.place(value), short(value)) for value in _log_ticks(self.low, self.high)]
        return [(self.place(value), short(value)) for value in _ticks(self.low, self.high, most)]


def around(values: Sequence[float], *, least: float = 1e-9) -> Scale:
    """An even scale with some room on both sides of all values."""
    low, high = min(values), max(values)
    room = max(0.08 * (high - low), 0.02 * max(abs(low), abs(high)), least)
    return Scale(low - room, high + room)


def short(value: float) -> str:
    """A number in as few characters as it can be told: 0.001, 3e-5, 1,200."""
    if value != 0 and not 1e-3 <= abs(value) < 1e4:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from `low` to `high`, at most about `most`: multiples of 1, 2 or 5."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; the ends where there are fewer than two."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    powers = [10.0**exponent for exponent in range(first, last + 1)]
    return powers if len(powers) >= 2 else [low, high]


class Chart:
    """A plot area with axes, onto which marks are put in the coordinates of two scales."""

    def __init__(
        self,
        x: Scale,
        y: Scale,
        *,
        about: str,
        size: tuple[float, float] = (480, 260),
        margins: tuple[float, float, float, float] = (14, 12, 40, 52),
        x_name: str = "",
        x_ticks: int = 5,
    ) -> None:
        self.x, self.y, self._about, self._size = x, y, about, size
        top, right, bottom, left = margins
        self._left, self._top = left, top
        self._width, self._height = size[0] - left - right, size[1] - top - bottom
        self._parts: list[str] = []
        self._axes(x_name, x_ticks)

    def at(self, x: Any, y: Any) -> tuple[float, float]:
        """The point of two values, in the units of the picture."""
        return self._across(self.x.place(x)), self._down(self.y.place(y))

    def put(self, mark: str) -> None:
        """Markup of a mark."""
        self._parts.append(mark)

    def dot(self, x: Any, y: Any, kind: str, *, trial: int, title: str, nudge: float = 0) -> None:
        """A mark of a trial, moved aside by `nudge` units."""
        across, down = self.at(x, y)
        self.put(
            f'<circle class="{kind}" data-trial="{trial}" cx="{across + nudge:.1f}" '
            f'cy="{down:.1f}" r="{6 if "best" in kind else 4.5}">'
            f"<title>{text(title)}</title></circle>"
        )

    def line(
        self, points: Sequence[tuple[Any, Any]], kind: str, *, trial: int | None = None,
        title: str = "",
    ) -> None:  # fmt: skip
        placed = " ".join("{:.1f},{:.1f}".format(*self.at(x, y)) for x, y in points)
        of = f' data-trial="{trial}"' if trial is not None else ""
        told = f"<title>{text(title)}</title>" if title else ""
        self.put(f'<polyline class="{kind}"{of} points="{placed}">{told}</polyline>')

    def markup(self) -> str:
        width, height = self._size
        return (
            f'<svg viewBox="0 0 {width:g} {height:g}" role="img" '
            f'aria-label="{text(self._about)}">{"".join(self._parts)}</svg>'
        )

    def _across(self, part: float) -> float:
        return self._left + part * self._width

    def _down(self, part: float) -> float:
        return self._top + (1 - part) * self._height

    def _axes(self, x_name: str, x_ticks: int) -> None:
        right, bottom = self._left + self._width, self._top + self._height
        for part, said in self.y.ticks():
            down = self._down(part)
            self.put(f'<path class="rule" d="M{self._left:g} {down:.1f}H{right:g}"></path>')
            self.put(label(self._left - 7, down + 4, said, anchor="end"))
        self.put(f'<path class="axis" d="M{self._left:g} {bottom:g}H{right:g}"></path>')
        for part, said in self.x.ticks(x_ticks):
            across = self._across(part)
            self.put(f'<path class="axis" d="M{across:.1f} {bottom:g}v4"></path>')
            self.put(label(across, bottom + 17, said))
        if x_name:
            self.put(label(self._left + self._width / 2, bottom + 34, x_name))


def label(x: float, y: float, said: str, *, anchor: str = "middle", kind: str = "label") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text(said)}</text>'
    )
