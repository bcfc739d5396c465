"""The sections of a report that any task has: each a pure function of runs to markup."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

from matinee.measure.draw import page
from matinee.measure.draw.formats import ABSENT, duration, rate
from matinee.measure.draw.plots import line_plot
from matinee.measure.report.metrics import HEADINGS, HEADLINES, KINDS, METRICS
from matinee.measure.report.rundata import (
    AXES,
    Axis,
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
from matinee.training.show.trackers import flat


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
    """Over epochs; of several runs also over steps, clips and hours, one axis shown at a time."""
    axes: list[Axis] = list(AXES) if len(runs) > 1 else ["epoch"]
    kinds = [kind for kind in KINDS if of_kind(runs, kind)]
    html = ""
    for kind in kinds:
        which = f", {kind}" if len(kinds) > 1 else ""
        rows = [run.train if run.kind == kind else () for run in runs]
        html += _plot(runs, rows, "loss", f"loss-{kind}", f"Training loss{which}", axes)
        key = HEADLINES[kind]
        heading, percent = HEADINGS[key]
        val = [run.val if run.kind == kind else () for run in runs]
        html += _plot(runs, val, key, f"val-{key}", heading, axes, percent=percent)
        if any(row.get("top1") is not None for held in rows for row in held):
            heading, caption = _BATCH_TOP1[kind]
            html += _plot(
                runs, rows, "top1", f"batch-{kind}", heading, axes, percent=True, caption=caption
            )
    rows = [run.train for run in runs]
    html += _plot(runs, rows, "lr", "lr", "Learning rate", axes, height=1.7)
    legend = page.run_legend([run.name for run in runs])
    if len(axes) > 1:
        legend += page.switch("Over", [_CHOICES[axis] for axis in axes])
        legend += page.note(_AXES_NOTE)
    return legend + f'<div class="grid">{html}</div>'


_CHOICES: dict[Axis, str] = {"epoch": "epochs", "step": "steps", "clips": "clips", "hours": "hours"}
_AXES_NOTE = (
    "Clips are those trained on so far, whatever the batch. Hours are recorded time: training, "
    "validation and saving, without what lay between sessions of a run that was resumed."
)
_BATCH_TOP1 = {
    "classification": ("Training top-1", "Of training clips, augmented as they were."),
    "contrastive": (
        "Top-1 within the batch",
        "Training clips whose own caption is the nearest of all captions of the step.",
    ),
}


def _plot(
    runs: Sequence[RunData],
    rows: Sequence[Sequence[dict[str, Any]]],
    key: str,
    name: str,
    heading: str,
    axes: Sequence[Axis],
    *,
    percent: bool = False,
    height: float = 2.7,
    caption: str = "",
) -> str:
    """A figure with a plot for each axis; `rows` are those of each run that may have `key`."""
    drawn = []
    for axis in axes:
        points = [curve(run, held, key, axis) for run, held in zip(runs, rows, strict=True)]
        if not any(held.size for held in points):
            return page.figure(heading, html="", caption="No rows of this kind were logged.")
        one = AXES[axis] if axis == "epoch" else _CHOICES[axis]
        told = [
            f"{run.name}: {held[1, 0]:.3g} at {one} {held[0, 0]:.3g}, "
            f"{held[1, -1]:.3g} at {one} {held[0, -1]:.3g}"
            for run, held in zip(runs, points, strict=True)
            if held.size
        ]
        about = f"{heading} over {_CHOICES[axis]}. {'; '.join(told)}."
        drawn.append(
            line_plot(
                name if axis == "epoch" else f"{name}-{axis}",
                points,
                about=about,
                x_name=AXES[axis],
                percent=percent,
                height=height,
            )
        )
    html = page.alternatives(html=drawn) if len(drawn) > 1 else drawn[0]
    return page.figure(heading, html=html, caption=caption)


_LONG = 24  # characters of a value that is broken into lines
_MACHINE = ("matinee", "python", "torch", "cuda", "packages", "platform", "cores", "gpu")


def differences(runs: Sequence[RunData]) -> str:
    """The settings, and the facts of the machine, that are not the same in all runs; "" for one."""
    if len(runs) == 1:
        return ""
    settings = [flat(run.config.to_dict()) for run in runs]
    for held in settings:
        del held["run.out"]  # each run has its own
    sections = list(runs[0].config.to_dict())
    names = sorted(
        dict.fromkeys(chain(*settings)), key=lambda key: sections.index(key.split(".")[0])
    )
    rows = _differing(settings, names)
    alike = len(names) - len(rows)
    html = (
        page.table("Settings that differ", [run.name for run in runs], rows)
        + page.note(f"The other {alike} settings are the same.")
        if rows
        else page.note("All settings are the same.")
    )
    machines = [flat({k: v for k, v in run.environment.items() if k in _MACHINE}) for run in runs]
    others = _differing(machines, list(dict.fromkeys(chain(*machines))))
    if others:
        html += "<h3>Machines and versions that differ</h3>"
        html += page.table("Machines and versions", [run.name for run in runs], others)
    return html


def _differing(
    held: Sequence[dict[str, Any]], names: Sequence[str]
) -> list[tuple[str, str, list[str]]]:
    """A row for each name whose values are not all the same, with a dash where there is none."""
    rows = []
    for name in names:
        # Tasks and models of several kinds have settings of their own.
        cells = [json.dumps(one[name]) if name in one else ABSENT for one in held]
        if len(set(cells)) > 1:
            rows.append(("wrap" if max(map(len, cells)) > _LONG else "", name, cells))
    return rows


def configuration(runs: Sequence[RunData]) -> str:
    html = ""
    for run in runs:
        environment = json.dumps(run.environment, indent=1, ensure_ascii=False)
        html += page.details(f"{run.name}: configuration", run.config.to_json())
        html += page.details(f"{run.name}: environment", environment)
    return html
