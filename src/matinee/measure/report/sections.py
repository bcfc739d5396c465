"""The sections of a report that any task has: each a pure function of runs to markup."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.measure.draw import page
from matinee.measure.draw.formats import ABSENT, duration, rate
from matinee.measure.draw.plots import line_plot
from matinee.measure.report.metrics import HEADINGS, HEADLINES, KINDS, METRICS
from matinee.measure.report.rundata import (
    RunData,
    clips_per_second,
    comparable,
    curve,
    of_kind,
    span_seconds,
)
from matinee.measure.report.times import SPAN_NAMES, span_order
from matinee.tasks.config import ClassificationConfig
from matinee.tasks.masked import MaskedTask


def summary(runs: Sequence[RunData]) -> str:
    """A table for each kind of task."""
    kinds = [kind for kind in KINDS if of_kind(runs, kind)]
    html = ""
    for kind in kinds:
        heading = f"<h3>{kind.capitalize()}</h3>" if len(kinds) > 1 else ""
        html += heading + _numbers(of_kind(runs, kind))
    return html


def _numbers(runs: Sequence[RunData]) -> str:
    scores = [run.scores for run in runs]
    seconds = [span_seconds(run) for run in runs]
    rows: list[tuple[str, str, list[str]]] = [
        *_metric_rows(runs),
        ("", "samples", [f"{s.samples:,}" if s else ABSENT for s in scores]),
        ("", "skipped", [f"{s.skipped:,}" if s else ABSENT for s in scores]),
        ("wrap", "measured on", [s.measured_on if s else "not validated" for s in scores]),
        ("group", "steps", [f"{r.train[-1]['step']:,}" if r.train else ABSENT for r in runs]),
        ("", "epochs", [f"{r.train[-1]['epoch']:.4g}" if r.train else ABSENT for r in runs]),
        ("", "clips/s in training", [rate(clips_per_second(run)) for run in runs]),
        ("group", "recorded time", [duration(sum(s.values())) for s in seconds]),
    ]
    for span in span_order(seconds):
        cells = [duration(s[span]) if span in s else ABSENT for s in seconds]
        rows.append(("", SPAN_NAMES.get(span, span), cells))
    table = page.table("Final numbers of each run", [run.name for run in runs], rows)
    return table + page.note(" ".join(_remarks(runs)))


def _metric_rows(runs: Sequence[RunData]) -> list[tuple[str, str, list[str]]]:
    """A row for each metric that any run has."""
    held = [run.scores.metrics if run.scores else {} for run in runs]
    headlines = {run.headline for run in runs}
    rows: list[tuple[str, str, list[str]]] = []
    group = ""
    for metric in METRICS:
        if any(metric.key in metrics for metrics in held):
            new = group not in ("", metric.group)
            kinds = ["group"] * new + ["strong"] * (metric.key in headlines)
            cells = [metric.write(m[metric.key]) if metric.key in m else ABSENT for m in held]
            rows.append((" ".join(kinds), metric.name, cells))
            group = metric.group
    return rows


def _remarks(runs: Sequence[RunData]) -> list[str]:
    """What the numbers must not be taken for."""
    told = []
    if not comparable(runs):
        told.append(
            "The runs were measured on different samples or with different views: their numbers "
            "are not directly comparable."
        )
    of_masked = [run.config.to_dict() for run in runs if run.kind == MaskedTask.kind]
    settings = {
        json.dumps([held[name] for name in ("model", "task", "clip")]) for held in of_masked
    }
    if len(settings) > 1:
        told.append(
            "The losses of masked runs compare only where mask, patches and targets are alike."
        )
    for run in runs:
        task = run.config.task
        if isinstance(task, ClassificationConfig) and task.labels == "verb+noun" and run.scores:
            told.append(
                f"{run.name}: top-1, top-5, F1 and ECE count actions, verb and noun together."
            )
    few = min(
        (
            len(run.scores.classes)
            for run in runs
            if run.scores and "top5" in run.scores.metrics and run.scores.classes
            and "verb_top1" not in run.scores.metrics
        ),
        default=6,
    )  # fmt: skip
    if few <= 5:
        told.append(f"With {few} classes, top-5 cannot be wrong.")
    return told


def curves(runs: Sequence[RunData]) -> str:
    kinds = [kind for kind in KINDS if of_kind(runs, kind)]
    html = ""
    for kind in kinds:
        which = f", {kind}" if len(kinds) > 1 else ""
        points = [curve(run.train if run.kind == kind else (), "loss") for run in runs]
        html += _plot(runs, f"loss-{kind}", f"Training loss{which}", points)
        key = HEADLINES[kind]
        heading, percent = HEADINGS[key]
        points = [curve(run.val if run.kind == kind else (), key) for run in runs]
        html += _plot(runs, f"val-{key}", heading, points, percent=percent)
        points = [curve(run.train if run.kind == kind else (), "top1") for run in runs]
        if any(held.size for held in points):
            heading, caption = _BATCH_TOP1[kind]
            html += _plot(runs, f"batch-{kind}", heading, points, percent=True, caption=caption)
    points = [curve(run.train, "lr") for run in runs]
    html += _plot(runs, "lr", "Learning rate", points, height=1.7)
    return page.run_legend([run.name for run in runs]) + f'<div class="grid">{html}</div>'


_BATCH_TOP1 = {
    "classification": ("Training top-1", "Of training clips, augmented as they were."),
    "contrastive": (
        "Top-1 within the batch",
        "Training clips whose own caption is the nearest of all captions of the step.",
    ),
}


def _plot(
    runs: Sequence[RunData],
    name: str,
    heading: str,
    points: Sequence[NDArray[np.float64]],
    *,
    percent: bool = False,
    height: float = 2.7,
    caption: str = "",
) -> str:
    if not any(held.size for held in points):
        return page.figure(heading, html="", caption="No rows of this kind were logged.")
    told = [
        f"{run.name}: {held[1, 0]:.3g} at epoch {held[0, 0]:.3g}, "
        f"{held[1, -1]:.3g} at epoch {held[0, -1]:.3g}"
        for run, held in zip(runs, points, strict=True)
        if held.size
    ]
    about = f"{heading} over epochs. {'; '.join(told)}."
    svg = line_plot(name, points, about=about, percent=percent, height=height)
    return page.figure(heading, html=svg, caption=caption)


def configuration(runs: Sequence[RunData]) -> str:
    html = ""
    if len(runs) > 1:
        flat = [_flat(run.config.to_dict()) for run in runs]
        # Tasks and models of several kinds have settings of their own: "" where a run has none.
        cells = {
            key: [json.dumps(held[key]) if key in held else "" for held in flat]
            for key in dict.fromkeys(chain(*flat))
        }
        sections = list(runs[0].config.to_dict())
        rows = [
            ("", key, [cell or ABSENT for cell in cells[key]])
            for key in sorted(cells, key=lambda key: sections.index(key.split(".")[0]))
            if len(set(cells[key])) > 1
        ]
        html += "<h3>Settings that differ</h3>" + (
            page.table("Settings that differ", [run.name for run in runs], rows)
            if rows
            else page.note("None.")
        )
    for run in runs:
        environment = json.dumps(run.environment, indent=1, ensure_ascii=False)
        html += page.details(f"{run.name}: configuration", run.config.to_json())
        html += page.details(f"{run.name}: environment", environment)
    return html


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat
