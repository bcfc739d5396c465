"""What the runs of an ablation say: a row for each cell, as table, plots and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matinee.measure.arms import Spread, Turns
from matinee.measure.bench.ablation_grid import Plan, Run
from matinee.measure.bench.ablation_levers import NONE, Lever
from matinee.measure.draw.figures import Bars, Figure, Series
from matinee.measure.result import Table

MIB = 2**20
COLUMNS = (
    "levers",
    "epoch, s",
    "times as fast",
    "peak, MiB",
    "of it in steps",
    "accuracy, %",
    "F1",
)


@dataclass(frozen=True)
class Row:
    """A cell's figures over its seeds; all None but `cannot` where it is not run.

    `epoch_s`: without the first epoch where there are more, which warms up. `speedup`: the epochs
    of the cell without levers divided by this one's, seed by seed and epoch by epoch. `step_bytes`:
    peak less what was held before the first step.
    """

    cell: str
    cannot: str = ""
    epoch_s: Spread | None = None
    speedup: Spread | None = None
    peak_bytes: Spread | None = None
    step_bytes: Spread | None = None
    top1: Spread | None = None
    macro_f1: Spread | None = None

    def to_dict(self) -> dict[str, Any]:
        found = {
            name: value.to_dict() if isinstance(value, Spread) else value
            for name, value in vars(self).items()
        }
        return {name: value for name, value in found.items() if value not in (None, "")}


def summarise(plan: Plan, runs: Sequence[Run]) -> tuple[Row, ...]:
    """A row for each cell of the grid, in its order."""
    own = {c.name: [run for run in runs if run.cell == c.name] for c in plan.measured}
    turns = Turns({name: [s for run in held for s in counted(run)] for name, held in own.items()})
    rows = []
    for cell in plan.cells:
        if cell.cannot:
            rows.append(Row(cell.name, cell.cannot))
            continue
        held = own[cell.name]
        rows.append(
            Row(
                cell.name,
                epoch_s=turns.spread(cell.name),
                speedup=turns.ratio(NONE, cell.name) if cell.name != NONE else None,
                peak_bytes=Spread.of([float(run.peak_bytes) for run in held]),
                step_bytes=Spread.of([float(run.peak_bytes - run.held_bytes) for run in held]),
                top1=Spread.of([run.top1 for run in held]),
                macro_f1=Spread.of([run.macro_f1 for run in held]),
            )
        )
    return tuple(rows)


def counted(run: Run) -> tuple[float, ...]:
    """Seconds of the epochs that count."""
    return run.seconds[1:] or run.seconds


def table(rows: Sequence[Row], runs: Sequence[Run], heading: str = "") -> Table:
    """Medians, "times as fast" with its quartiles; accuracy (with the least and the greatest) and
    macro F1 are means over seeds.
    """
    cells = []
    for row in rows:
        own = [run for run in runs if run.cell == row.cell]
        if row.epoch_s is None or row.peak_bytes is None or row.step_bytes is None:
            cells.append([row.cell, "", row.cannot, *[""] * (len(COLUMNS) - 3)])
            continue
        top1 = [100 * run.top1 for run in own]
        seen = f" ({min(top1):.1f}–{max(top1):.1f})" if len(own) > 1 else ""
        cells.append(
            [
                row.cell,
                f"{row.epoch_s.median:.3g}",
                "" if row.speedup is None else written(row.speedup),
                f"{row.peak_bytes.median / MIB:,.0f}",
                f"{row.step_bytes.median / MIB:,.0f}",
                f"{sum(top1) / len(own):.1f}{seen}",
                f"{sum(run.macro_f1 for run in own) / len(own):.3f}",
            ]
        )
    return Table(COLUMNS, cells, heading)


def written(spread: Spread) -> str:
    """The median, with its quartiles where there are several values."""
    return str(spread) if spread.count > 1 else f"{spread.median:.3g}"


def plots(rows: Sequence[Row], what: str) -> dict[str, Figure]:
    """Bars of time, memory and accuracy, a bar a cell that was run."""
    held = [row for row in rows if row.epoch_s is not None]
    names = [row.cell for row in held]

    def bars(name: str, key: str, unit: str, scale: float, form: str) -> Bars:
        spreads = [getattr(row, key) for row in held]
        series = Series(
            name, [], [s.median * scale for s in spreads], [s.low * scale for s in spreads],
            [s.high * scale for s in spreads],
        )  # fmt: skip
        return Bars(f"{what}: {name}, medians and quartiles", names, unit, [series], form)

    return {
        "time": bars("seconds of an epoch", "epoch_s", "seconds an epoch", 1.0, "{:.3g}"),
        "memory": bars("peak memory", "peak_bytes", "peak memory, MiB", 1 / MIB, "{:,.0f}"),
        "accuracy": bars("test accuracy", "top1", "test accuracy, %", 100.0, "{:.1f}"),
    }


def remarks(plan: Plan, levers: Sequence[Lever], runs: Sequence[Run]) -> str:
    """What each lever is, and what the figures are of."""
    one = runs[0]
    seeds = len(plan.seeds)
    counted_epochs = f"{plan.epochs - 1} of {plan.epochs} epochs" if plan.epochs > 1 else "1 epoch"
    of_runs = "tensors on the GPU" if one.device != "cpu" else "the whole process"
    told = [
        f"{'; '.join(f'{x.name}: {x.about}' for x in levers)}.",
        f"{one.steps} steps of {one.clips // one.steps} clips an epoch, {counted_epochs} counted"
        f"{' (the first warms up)' if plan.epochs > 1 else ''}, {seeds} "
        f"{'seeds' if seeds > 1 else 'seed, so nothing is known of the spread of accuracy'}; "
        f"accuracy on {one.samples:,} held-out samples after the last epoch.",
        f"Each run is a process of its own. Memory is the peak of {of_runs} while training, and "
        "how much of it came after the first step began.",
        "Cells took turns, an epoch each, in an order that rotates."
        if plan.turns
        else "Runs followed each other: a slow minute of the machine falls on one cell.",
    ]
    if apart := across_sittings(runs):
        told.append(
            f"The grid was measured in several sittings: {', '.join(apart)} not always in that of "
            "the cell without levers, so these ratios also hold how the machine had changed."
        )
    told += [f"{x.name}: {x.caution}." for x in levers if x.caution]
    return " ".join(told)


def across_sittings(runs: Sequence[Run]) -> tuple[str, ...]:
    """Cells of which a run has another sitting than the run without levers of the same seed, with
    which it is compared. See Note [Sittings] in ablation_grid.py.
    """
    base = {run.seed: run.sitting for run in runs if run.cell == NONE}
    return tuple(dict.fromkeys(run.cell for run in runs if run.sitting != base[run.seed]))


def to_data(plan: Plan, rows: Sequence[Row], runs: Sequence[Run]) -> dict[str, Any]:
    """For JSON: the rows, every run, and the config that all cells share."""
    return {
        "levers": [vars(lever) for lever in plan.levers],
        "epochs": plan.epochs,
        "seeds": list(plan.seeds),
        "turns": plan.turns,
        "cells": [row.to_dict() for row in rows],
        "runs": [vars(run) for run in runs],
        "config": plan.config.to_dict(),
    }
