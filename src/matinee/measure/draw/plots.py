"""Plots as inline SVG that follow the page: its font, its light and dark colours.

# Note [Colours of the page]
matplotlib wants colours when it draws; the page decides them when it is shown. So plots are drawn
in stand-in colours, which are replaced by CSS variables in the finished SVG. Figures are 5 inches
wide, so that text of 9 points is still legible when one fills a phone.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.evaluation.calibration import Reliability
from matinee.extras import require

INK, MUTED, RULE, PAGE, ACCENT = "#010203", "#010204", "#010205", "#010206", "#010207"
_VARIABLES = {
    INK: "--ink",
    ACCENT: "--accent",
    MUTED: "--muted",
    RULE: "--rule",
    PAGE: "--page",
}
NUM_COLOURS = 6
RUN = [f"#0a0b{i:02x}" for i in range(NUM_COLOURS)]
_VARIABLES |= {stand_in: f"--run{i}" for i, stand_in in enumerate(RUN)}
DASHES = ("", "6 2.4", "1.6 1.6", "7 2 1.6 2")  # of SVG strokes, in line with STYLES
STYLES: tuple[Any, ...] = ("-", (0, (3.4, 1.4)), (0, (1, 1)), (0, (4, 1.2, 1, 1.2)))
MARKERS = "os^Dvp"
HATCHES = ("", "/////", "....", "xxxx")
# Okabe & Ito, "Color Universal Design" (2008).
SPAN_COLOURS = {
    "data_wait": "#e69f00", "h2d": "#f0e442", "forward": "#56b4e9", "backward": "#0072b2",
    "comm": "#d55e00", "optimizer": "#009e73", "validate": "#cc79a7",
    "save": "#8c6d31", "other": "#a0a4ab",
}  # fmt: skip
WIDTH = 5.0
LABELLED_CLASSES = 40
_COUNTED_CLASSES = 16
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "matinee", "text.parse_math": False,
    "font.size": 9.5, "text.color": INK, "axes.labelcolor": MUTED, "axes.edgecolor": RULE,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": RULE, "grid.linewidth": 0.7,
    "xtick.color": RULE, "ytick.color": RULE, "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED, "ytick.major.size": 0, "xtick.major.size": 3,
    "hatch.linewidth": 0.7, "lines.linewidth": 1.8, "lines.markersize": 4.5,
}  # fmt: skip


def line_plot(
    prefix: str,
    curves: Sequence[NDArray[np.float64]],
    *,
    about: str,
    x_name: str = "epoch",
    percent: bool = False,
    height: float = 2.7,
) -> str:
    """Values over epochs or another axis, one curve [2, N] a run, not all empty.

    Args:
        prefix: of the SVG's ids; another one for each plot of a page.
        about: what the plot shows, read to those who can't see it.
    """
    last = max(float(points[0].max()) for points in curves if points.size)

    def draw(axes: Any) -> None:
        ticker = require("matplotlib.ticker", "train")
        for i, (x, y) in enumerate(curves):
            few = len(x) <= 40
            axes.plot(
                x, y, color=RUN[i % NUM_COLOURS], linestyle=STYLES[i % len(STYLES)],
                marker=MARKERS[i % len(MARKERS)] if few else "", markeredgewidth=0,
            )  # fmt: skip
        axes.set_xlabel(x_name)
        axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=x_name == "epoch"))
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.set_xlim(0, 1.03 * last if last > 0 else 1.0)
        if percent:
            axes.set_ylim(-0.03, 1.03)
            axes.yaxis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=0))
        else:
            axes.yaxis.set_major_locator(ticker.MaxNLocator(5))

    return page_svg(prefix, about, (WIDTH, height), draw)


def confusion_plot(
    prefix: str, confusion: NDArray[np.int64], classes: Sequence[str], *, about: str
) -> str:
    """Counts [K, K], shaded by the part of the row; up to 40 classes named, up to 16 counted."""
    total = np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    many = len(classes)

    def draw(axes: Any) -> None:
        # Never darker than 0.8, so that the page's text colour is legible on every cell.
        alpha_KK = 0.8 * confusion / total
        for (row, column), alpha in np.ndenumerate(alpha_KK):
            if alpha > 0:
                cell = require("matplotlib.patches", "train").Rectangle(
                    (column - 0.5, row - 0.5), 1, 1, color=ACCENT, alpha=float(alpha), linewidth=0
                )
                axes.add_patch(cell)
            if many <= _COUNTED_CLASSES:
                count = int(confusion[row, column])
                axes.text(
                    column, row, str(count), ha="center", va="center_baseline",
                    color=INK if count else MUTED,
                    fontsize=10 if many <= 10 else 8,
                    fontweight="bold" if row == column else "normal",
                )  # fmt: skip
        axes.set_xlim(-0.5, many - 0.5)
        axes.set_ylim(many - 0.5, -0.5)
        axes.set_aspect("equal")
        named = range(many) if many <= LABELLED_CLASSES else []
        size = 9 if many <= _COUNTED_CLASSES else 6
        names = [_short(classes[i]) for i in named]
        turn = 0 if many <= 6 and max(map(len, names)) <= 8 else 50
        axes.set_xticks(
            named, names, rotation=turn, ha="right" if turn else "center",
            rotation_mode="anchor", fontsize=size,
        )  # fmt: skip
        axes.set_yticks(named, names, fontsize=size)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        axes.tick_params(length=0)
        axes.grid(False)
        for edge in np.arange(many + 1) - 0.5 if many <= LABELLED_CLASSES else []:
            axes.axhline(edge, color=RULE, linewidth=0.7)
            axes.axvline(edge, color=RULE, linewidth=0.7)
        for spine in axes.spines.values():
            spine.set_visible(many > LABELLED_CLASSES)

    return page_svg(prefix, about, (WIDTH, 4.4), draw)


def class_bars(
    prefix: str,
    classes: Sequence[str],
    hits: Sequence[Sequence[tuple[int, int] | None]],
    *,
    about: str,
) -> str:
    """Accuracy of each class; `hits[run][class]` = (right, samples), None where a run has no such
    class. Runs without any take no room.
    """
    shown = [(run, row) for run, row in enumerate(hits) if any(hit is not None for hit in row)]
    thick = 0.8 / len(shown)

    def draw(axes: Any) -> None:
        for line, (run, row) in enumerate(shown):
            colour = RUN[run % NUM_COLOURS]
            hatch = HATCHES[run % len(HATCHES)]
            for place, hit in enumerate(row):
                if hit is None:
                    continue
                y = place - 0.4 + thick * (line + 0.5)
                right, samples = hit
                part = right / samples if samples else 0.0
                axes.barh(
                    y, part, 0.86 * thick, color=colour, edgecolor=PAGE, hatch=hatch, linewidth=0
                )
                note = f"{right}/{samples}" if samples else "no samples"
                axes.text(part + 0.015, y, note, va="center_baseline", color=MUTED, fontsize=8)
        axes.set_xlim(0, 1.14)
        axes.set_ylim(len(classes) - 0.4, -0.6)
        axes.set_yticks(range(len(classes)), [_short(name) for name in classes])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100 %"])
        axes.grid(False, axis="y")

    return page_svg(prefix, about, (WIDTH, 0.7 + len(classes) * max(0.3, 0.19 * len(shown))), draw)


def reliability_plot(prefix: str, tables: Sequence[Reliability | None], *, about: str) -> str:
    """Accuracy over confidence, a line a run (None: nothing to draw) beside the diagonal."""

    def draw(axes: Any) -> None:
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        for i, table in enumerate(tables):
            if table is None:
                continue
            used = table.count > 0
            x, y, part = table.confidence[used], table.accuracy[used], table.count[used]
            colour = RUN[i % NUM_COLOURS]
            style = STYLES[i % len(STYLES)]
            axes.plot(x, y, color=colour, linestyle=style, linewidth=1.2)
            axes.scatter(
                x, y, s=14 + 260 * part / part.sum(), color=colour, edgecolors=PAGE,
                marker=MARKERS[i % len(MARKERS)], linewidths=0.8, zorder=3,
            )  # fmt: skip
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100 %"])
        axes.set_xlim(-0.02, 1.03)
        axes.set_ylim(-0.03, 1.04)
        axes.set_xlabel("probability given to the prediction")
        axes.set_ylabel("predictions that are right")

    return page_svg(prefix, about, (WIDTH, 3.6), draw)


def share_bars(
    prefix: str, names: Sequence[str], seconds: Sequence[dict[str, float]], *, about: str
) -> str:
    """One bar a run, divided by the share of each span; shares of 7 % and more carry theirs."""

    def draw(axes: Any) -> None:
        for place, (name, spans) in enumerate(zip(names, seconds, strict=True)):
            total = sum(spans.values())
            left = 0.0
            axes.text(0, place - 0.34, _short(name, 60), va="bottom", fontsize=9.5)
            for span, spent in spans.items():
                part = spent / total
                colour = SPAN_COLOURS.get(span, SPAN_COLOURS["other"])
                axes.barh(place, part, 0.56, left, color=colour, edgecolor=PAGE, linewidth=1.2)
                if part >= 0.07:
                    axes.text(
                        left + part / 2, place, f"{part:.0%}".replace("%", " %"), ha="center",
                        va="center_baseline", fontsize=9,
                        color="#ffffff" if span == "backward" else "#111111",
                    )  # fmt: skip
                left += part
        axes.set_xlim(0, 1)
        axes.set_ylim(len(names) - 0.62, -0.75)
        axes.set_yticks([])
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100 %"])
        axes.grid(False)

    return page_svg(prefix, about, (WIDTH, 0.4 + 0.62 * len(names)), draw)


def _short(text: str, most: int = 22) -> str:
    text = " ".join(clean(text).split())
    return text if len(text) <= most else text[: most - 1] + "…"


def clean(text: str) -> str:
    """`text` with characters that HTML and SVG can't hold replaced."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)


def page_svg(
    prefix: str,
    about: str,
    size: tuple[float, float],
    draw: Callable[[Any], None],
) -> str:
    """Draw without pyplot (no global figures) and make the SVG fit to be inlined."""
    matplotlib = require("matplotlib", "train")
    figure_module = require("matplotlib.figure", "train")
    buffer = io.StringIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the page's font draws it, not ours
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change the page
        matplotlib.rcParams.update(STYLE)
        figure = figure_module.Figure(figsize=size, layout="constrained")
        figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02)
        draw(figure.add_subplot())
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return inline_svg(buffer.getvalue(), prefix, about)


def inline_svg(text: str, prefix: str, about: str) -> str:
    """The bare <svg> of a matplotlib file: no prologue, metadata, style sheet or fixed size.

    Only tags are touched, never the text between them. See Note [Colours of the page].
    """
    body = text[text.index("<svg") :]
    view = re.search(r'viewBox="([^"]*)"', body)
    assert view is not None
    body = body[body.index(">") + 1 :]
    body = re.sub(r"<(metadata|style)\b.*?</\1>", "", body, flags=re.DOTALL)
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', body))
    kept = {name for pair in used for name in pair if name}

    def fix(tag: re.Match[str]) -> str:
        fixed = tag[0].replace("xlink:href=", "href=")
        fixed = re.sub(
            r' id="([^"]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in kept else "", fixed
        )
        fixed = fixed.replace('href="#', f'href="#{prefix}-').replace("url(#", f"url(#{prefix}-")
        fixed = re.sub(
            r"font: (?:(\d+) )?([\d.]+px) [^;\"]*",
            lambda m: (f"font-weight: {m[1]}; " if m[1] else "") + f"font-size: {m[2]}",
            fixed,
        )
        for stand_in, variable in _VARIABLES.items():
            fixed = fixed.replace(stand_in, f"var({variable})")
        return fixed

    body = re.sub(r"<[^>]*>", fix, body)
    return f'<svg viewBox="{view[1]}" role="img" aria-label="{escape(clean(about))}">{body}'
