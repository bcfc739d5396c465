"""The plot of a learning-rate range test, as a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from matinee.extras import require
from matinee.files import naming
from matinee.training.search.find_lr import RangeTest

_INK, _MUTED, _RULE = "#1b1e24", "#5a616e", "#e2e5ea"
_CURVE, _DOTS, _TAKE = "#0072b2", "#9aa4b2", "#009e73"  # Okabe & Ito, "Color Universal Design"
_OTHER = "#d55e00"
_STYLE = {
    "font.size": 10, "text.color": _INK, "axes.labelcolor": _MUTED, "axes.edgecolor": _RULE,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": _RULE, "grid.linewidth": 0.7,
    "xtick.color": _MUTED, "ytick.color": _MUTED, "ytick.major.size": 0, "xtick.minor.size": 0,
    "svg.hashsalt": "matinee", "text.parse_math": True,
}  # fmt: skip


def write_lr_plot(path: Path, found: RangeTest) -> None:
    """Loss over the rate, logarithmic: each step a dot, the smoothed curve, and what is suggested.

    Args:
        path: its suffix says which kind of picture: .png, .svg or another of matplotlib's.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    matplotlib = require("matplotlib", "train")
    figure_module = require("matplotlib.figure", "train")
    rates, smoothed = np.array(found.rates), np.array(found.smoothed)
    losses = np.array(found.losses)[: len(smoothed)]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change the plot
        matplotlib.rcParams.update(_STYLE)
        figure = figure_module.Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
        axes = figure.add_subplot()
        axes.set_xscale("log")
        axes.scatter(rates[: len(losses)], losses, s=9, color=_DOTS, linewidths=0, label="a step")
        axes.plot(rates[: len(smoothed)], smoothed, color=_CURVE, linewidth=2.2, label="smoothed")
        low, high = _limits(smoothed, found)
        axes.set_ylim(low, high)
        told = found.suggestion
        marks = (
            (told.lr, _TAKE, "-", "take"),
            (told.steepest, _OTHER, (0, (4, 2)), "steepest descent"),
            (told.tenth, _MUTED, (0, (4, 2)), "a tenth of the minimum"),
            (told.minimum, _MUTED, (0, (1, 1.5)), "minimum"),
        )
        for rate, colour, style, name in marks:
            if rate is not None:
                label = f"{name}, {rate:.2g}"
                axes.axvline(
                    rate,
                    color=colour,
                    linestyle=style,
                    linewidth=2.2 if rate == told.lr else 1.2,
                    label=label,
                )
        grown = f" (× {found.growth:g} for the batch)" if found.growth != 1 else ""
        axes.set_xlabel(f"--optim.lr{grown}")
        axes.set_ylabel("training loss")
        ended = f"diverged at {rates[-1]:.2g}" if found.diverged else "no divergence"
        axes.set_title(
            f"{found.optimizer}, batch {found.batch_size}, {len(rates)} steps: {ended}",
            loc="left", fontsize=11, fontweight="bold",
        )  # fmt: skip
        axes.legend(loc="best", frameon=True, facecolor="white", edgecolor="none", fontsize=9)
        path.parent.mkdir(parents=True, exist_ok=True)
        with naming(path):
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _limits(smoothed: np.ndarray, found: RangeTest) -> tuple[float, float]:
    """Of the loss, so that the fall fills the picture and the divergence leaves it."""
    if not len(smoothed):
        return 0.0, 1.0
    lowest, first = float(smoothed.min()), float(smoothed[: max(1, found.steps // 10)].max())
    height = max(first - lowest, 0.05 * abs(first), 1e-6)
    return lowest - 0.25 * height, first + 0.6 * height
