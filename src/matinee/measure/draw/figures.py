"""Plots of measurements: the same figure inline in a page, or as a file of its own (SVG, PNG)."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from matinee.errors import ConfigError
from matinee.extras import require
from matinee.files import write_whole
from matinee.measure.draw import plots

# What the stand-in colours of pages are on paper. See Note [Colours of the page].
_PAPER = {
    plots.INK: "#1b1e24", plots.MUTED: "#5a616e", plots.RULE: "#e2e5ea", plots.PAGE: "#ffffff",
    plots.ACCENT: "#0072b2",
    **dict(
        zip(plots.RUN, ("#0072b2", "#d55e00", "#009e73", "#b5608f", "#b07a00", "#3b93c4"),
            strict=True)
    ),
}  # fmt: skip


class Figure(Protocol):
    """What can be drawn. `about` says what it shows, read to those who can't see it."""

    @property
    def about(self) -> str: ...
    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches; a page shows 5 inches as the width of a phone."""

    def draw(self, axes: Any) -> None:
        """Onto matplotlib's axes, in the stand-in colours of pages."""


@dataclass(frozen=True)
class Series:
    """One line or set of bars: `y[i]` at `x[i]`, with `low[i]` … `high[i]` around it if given."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    style: Literal["line", "dots", "dashed"] = "line"


@dataclass(frozen=True)
class Lines:
    """Curves over a common axis, each with its spread as a band; names in a legend."""

    about: str
    x_name: str
    y_name: str
    series: Sequence[Series]
    x_log: bool = False
    y_log: bool = False
    x_ticks: Sequence[float] | None = None
    """Where the axis is labelled; else where it is round."""
    notes: Sequence[tuple[float, float, str]] = field(default=())
    """Points (x, y) with a word beside them."""
    height: float = 3.2

    @property
    def size(self) -> tuple[float, float]:
        return plots.WIDTH, self.height

    def draw(self, axes: Any) -> None:
        for i, series in enumerate(self.series):
            colour = plots.RUN[i % plots.NUM_COLOURS]
            few = len(series.x) <= 40
            axes.plot(
                series.x, series.y, color=colour, label=plots.clean(series.name),
                linestyle="" if series.style == "dots" else "--" if series.style == "dashed" else
                plots.STYLES[i % len(plots.STYLES)],
                marker=plots.MARKERS[i % len(plots.MARKERS)]
                if (few and series.style == "line") or series.style == "dots" else "",
                markeredgewidth=0,
            )  # fmt: skip
            if series.low is not None and series.high is not None:
                axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.18, lw=0)
        for x, y, word in self.notes:
            axes.annotate(
                plots.clean(word), (x, y), xytext=(5, 6), textcoords="offset points", fontsize=8.5,
                color=plots.INK,
            )  # fmt: skip
        _scale(axes.xaxis, axes.set_xscale, log=self.x_log, ticks=self.x_ticks)
        _scale(axes.yaxis, axes.set_yscale, log=self.y_log, ticks=None)
        axes.set_xlabel(self.x_name)
        axes.set_ylabel(self.y_name)
        if len(self.series) > 1:
            axes.legend(frameon=False, labelcolor=plots.INK, fontsize=8.5)


@dataclass(frozen=True)
class Bars:
    """Groups of horizontal bars with their values: a row for each of `names`, a bar in it for each
    series (whose `x` is not used); None in `y` leaves one out.
    """

    about: str
    names: Sequence[str]
    value_name: str
    series: Sequence[Series]
    form: str = "{:.3g}"

    @property
    def size(self) -> tuple[float, float]:
        thick = max(0.34, 0.2 * len(self.series))
        return plots.WIDTH, 0.75 + thick * len(self.names) + 0.22 * (len(self.series) > 1)

    def draw(self, axes: Any) -> None:
        thick = 0.8 / len(self.series)
        most = max((v for s in self.series for v in s.y if v is not None), default=1.0)
        for i, series in enumerate(self.series):
            name: str | None = plots.clean(series.name)
            for row, value in enumerate(series.y):
                if value is None:
                    continue
                y = row - 0.4 + thick * (i + 0.5)
                axes.barh(
                    y, value, 0.86 * thick, color=plots.RUN[i % plots.NUM_COLOURS], linewidth=0,
                    edgecolor=plots.PAGE, hatch=plots.HATCHES[i % len(plots.HATCHES)],
                    label=name,
                )  # fmt: skip
                name, end = None, value
                if series.low is not None and series.high is not None:
                    end = max(value, series.high[row])
                    axes.plot([series.low[row], series.high[row]], [y, y], color=plots.INK, lw=1.1)
                axes.text(
                    end + 0.015 * most, y, self.form.format(value), va="center_baseline",
                    color=plots.MUTED, fontsize=8.5,
                )  # fmt: skip
        axes.set_xlim(0, 1.18 * most)
        axes.set_ylim(len(self.names) - 0.45, -0.55)
        axes.set_yticks(range(len(self.names)), [plots.clean(name) for name in self.names])
        axes.tick_params(axis="y", labelcolor=plots.INK)
        axes.set_xlabel(self.value_name)
        axes.grid(False, axis="y")
        if len(self.series) > 1:
            axes.figure.legend(
                frameon=False, loc="outside upper left", ncols=min(3, len(self.series)),
                labelcolor=plots.INK, fontsize=8.5,
            )  # fmt: skip


@dataclass(frozen=True)
class Stacks:
    """A horizontal bar for each of `names`, put together of `parts[i]`: seconds (or another unit)
    by name, drawn in the order of the first bar that has them; parts of 7 % and more are named.
    """

    about: str
    names: Sequence[str]
    parts: Sequence[dict[str, float]]
    value_name: str
    colours: dict[str, str]
    """Of each part; one of its own name in `plots.SPAN_COLOURS` else."""
    form: str = "{:.3g}"

    @property
    def size(self) -> tuple[float, float]:
        return plots.WIDTH, 0.95 + 0.62 * len(self.names)

    def draw(self, axes: Any) -> None:
        most = max(sum(parts.values()) for parts in self.parts)
        order = list(dict.fromkeys(name for parts in self.parts for name in parts))
        for row, (name, parts) in enumerate(zip(self.names, self.parts, strict=True)):
            left = 0.0
            axes.text(0, row - 0.34, plots.clean(name), va="bottom", fontsize=9.5)
            for part in order:
                value = parts.get(part, 0.0)
                if value <= 0:
                    continue
                colour = self.colours.get(part, plots.SPAN_COLOURS.get(part, "#a0a4ab"))
                axes.barh(
                    row, value, 0.56, left, color=colour, edgecolor=plots.PAGE, linewidth=1.2,
                    label=plots.clean(part),
                )  # fmt: skip
                if value >= 0.07 * most:
                    axes.text(
                        left + value / 2, row, self.form.format(value), ha="center",
                        va="center_baseline", fontsize=8.5, color=_on(colour),
                    )  # fmt: skip
                left += value
        axes.set_xlim(0, most)
        axes.set_ylim(len(self.names) - 0.62, -0.75)
        axes.set_yticks([])
        axes.set_xlabel(self.value_name)
        axes.grid(False)
        handles, labels = axes.get_legend_handles_labels()
        unique = dict(zip(labels, handles, strict=True))
        axes.figure.legend(
            unique.values(), unique.keys(), frameon=False, loc="outside upper left",
            ncols=min(4, len(unique)), labelcolor=plots.INK, fontsize=8.5,
        )  # fmt: skip


def inline(figure: Figure, prefix: str) -> str:
    """SVG markup that follows the page's colours; `prefix` makes its ids unique on the page."""
    return plots.page_svg(prefix, figure.about, figure.size, figure.draw)


def save(figure: Figure, path: Path) -> None:
    """Write a file, SVG or PNG by its suffix, on white.

    Raises:
        ConfigError: another suffix.
        MissingExtra: matplotlib is not installed.
    """
    kind = path.suffix.lower()
    if kind not in (".svg", ".png"):
        raise ConfigError(f"{path}: a plot is written as .svg or .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _file(kind[1:], figure.size, figure.draw))


def _file(kind: str, size: tuple[float, float], draw: Callable[[Any], None]) -> bytes:
    matplotlib = require("matplotlib", "train")
    figure_module = require("matplotlib.figure", "train")
    buffer = io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(plots.STYLE)
        figure = figure_module.Figure(figsize=size, layout="constrained", facecolor="white")
        draw(figure.add_subplot())
        for artist in figure.findobj():
            _repaint(artist)
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(buffer, format=kind, dpi=160, metadata=metadata, facecolor="white")
    data = buffer.getvalue()
    if kind == "svg":
        for stand_in, colour in _PAPER.items():
            data = data.replace(stand_in.encode(), colour.encode())
    return data


def _repaint(artist: Any) -> None:
    """Put the colours of paper in place of stand-ins."""
    to_hex = require("matplotlib.colors", "train").to_hex
    for name in ("color", "facecolor", "edgecolor"):
        get, put = (getattr(artist, f"{verb}_{name}", None) for verb in ("get", "set"))
        if get is None or put is None:
            continue
        try:
            paper = _PAPER.get(to_hex(get()))
        except (TypeError, ValueError):  # several colours
            continue
        if paper is not None:
            put(paper)


def _on(colour: str) -> str:
    """Black or white, whichever is legible on a colour (ITU-R BT.601 luma)."""
    if not colour.startswith("#"):
        return plots.INK
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#111111" if 0.299 * red + 0.587 * green + 0.114 * blue > 110 else "#ffffff"


def _scale(
    axis: Any, set_scale: Callable[[str], None], *, log: bool, ticks: Sequence[float] | None
) -> None:
    ticker = require("matplotlib.ticker", "train")
    if log:
        set_scale("log")
    if ticks is not None:
        axis.set_major_locator(ticker.FixedLocator(list(ticks)))
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_locator(ticker.NullLocator())
    elif log:
        low, high = axis.get_view_interval()
        if 0 < high < 100 * low:  # else one label or none would be left
            axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axis.set_minor_formatter(ticker.NullFormatter())
    else:
        axis.set_major_locator(ticker.MaxNLocator(6))
