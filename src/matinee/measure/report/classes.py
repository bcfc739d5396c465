"""Sections about classes: what is mistaken for what, and whether probabilities mean anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from matinee.evaluation.calibration import Reliability, reliability
from matinee.measure.draw import page
from matinee.measure.draw.plots import (
    LABELLED_CLASSES,
    class_bars,
    confusion_plot,
    reliability_plot,
)
from matinee.measure.report.examples import is_right
from matinee.measure.report.rundata import RunData
from matinee.tasks.config import ClassificationConfig

_MOST_CONFUSIONS = 20


def confusion(runs: Sequence[RunData]) -> str:
    """Matrices and the accuracy of each class; "" if no run's task has a matrix."""
    of_one = [run for run in runs if _labels(run) in ("single", "verb+noun")]
    if not of_one:
        return ""
    scored = [(run, run.scores) for run in of_one if run.scores]
    held = [(run, s, s.confusion) for run, s in scored if s.confusion is not None]
    if not held:
        return page.note("No run was validated.")
    html = ""
    for i, (run, scores, counts) in enumerate(held):
        hits = int(np.trace(counts))
        about = f"Confusion matrix of {run.name}: {hits} of {scores.samples} on the diagonal."
        svg = confusion_plot(f"confusion{i}", counts, scores.classes, about=about)
        verbs = " Verbs, each the sum of its actions." if _labels(run) == "verb+noun" else ""
        caption = f"{scores.source}: {scores.measured_on}.{verbs}"
        html += page.figure(f"Confusion matrix of {run.name}", html=svg, caption=caption)
    most = max(len(scores.classes) for _, scores, _ in held)
    html = (
        page.note(
            "Row: true class. Column: predicted class. Shading: part of the row's samples"
            + ("; numbers: samples." if most <= 16 else ".")
        )
        + f'<div class="grid">{html}{_class_bars(runs)}</div>'
    )
    for run, scores, counts in held:
        if len(scores.classes) > LABELLED_CLASSES:
            html += _frequent_confusions(run, counts.copy(), scores.classes)
    return html


def _labels(run: RunData) -> str:
    """single, multi or verb+noun; "" for other tasks."""
    task = run.config.task
    return task.labels if isinstance(task, ClassificationConfig) else ""


def _frequent_confusions(run: RunData, confusion: Any, classes: Sequence[str]) -> str:
    """A table of the largest cells off the diagonal, for matrices too large to name."""
    np.fill_diagonal(confusion, 0)
    order = np.argsort(-confusion, axis=None, kind="stable")[:_MOST_CONFUSIONS]
    cells = [np.unravel_index(place, confusion.shape) for place in order]
    rows = [
        ("", classes[i], [classes[j], f"{confusion[i, j]:,}"]) for i, j in cells if confusion[i, j]
    ]
    heading = f"Most frequent mistakes of {run.name}"
    return f"<h3>{page.text(heading)}</h3>" + page.table(heading, ["taken for", "samples"], rows)


def _class_bars(runs: Sequence[RunData]) -> str:
    """Accuracy by class; of many classes, those that the runs together get right least often."""
    counts: list[dict[str, tuple[int, int]]] = []
    for run in runs:
        s = run.scores
        if s is None or s.confusion is None:
            counts.append({})
            continue
        right, sums = s.confusion.diagonal().tolist(), s.confusion.sum(axis=1).tolist()
        counts.append(dict(zip(s.classes, zip(right, sums, strict=True), strict=True)))
    names = list(dict.fromkeys(name for held in counts for name in held))
    note = "Right predictions of all samples of the class, in the order of the runs above."
    if len(names) > LABELLED_CLASSES:
        total = {n: np.sum([held.get(n, (0, 0)) for held in counts], axis=0) for n in names}
        measured = [name for name in names if total[name][1]]
        worst = sorted(measured, key=lambda n: total[n][0] / total[n][1])[:LABELLED_CLASSES]
        note += f" The {len(worst)} lowest of {len(names)} classes."
        names = worst
    told = "; ".join(
        f"{run.name}: "
        + ", ".join(f"{name} {held[name][0]}/{held[name][1]}" for name in names if name in held)
        for run, held in zip(runs, counts, strict=True)
    )
    hits = [[held.get(name) for name in names] for held in counts]
    svg = class_bars("classes", names, hits, about=f"Accuracy of each class. {told}.")
    return page.figure("Accuracy of each class", html=svg, caption=note)


def calibration(runs: Sequence[RunData]) -> str:
    """Reliability diagram; "" if no run has predictions of single classes."""
    tables: list[Reliability | None] = [_reliability(run) for run in runs]
    measured = [(run, table) for run, table in zip(runs, tables, strict=True) if table]
    if not measured:
        return ""
    told = "; ".join(
        f"{run.name}: expected calibration error {table.expected_error():.3f}"
        for run, table in measured
    )
    about = f"Accuracy over confidence. {told}."
    svg = reliability_plot("calibration", tables, about=about)
    bins = len(measured[0][1].count)
    return page.note(
        "Can the probability that a run gives its prediction be taken at its word? Samples are "
        f"grouped by it, in {bins} ranges of equal width; each point is one, with the share of "
        "right predictions, and its area grows with the number of samples. Below the diagonal the "
        "run is too sure of itself, above it not sure enough. The expected calibration error (ECE) "
        "is the mean distance from the diagonal over all samples."
    ) + page.figure("Accuracy over confidence", html=svg, caption=f"{told}.")


def _reliability(run: RunData) -> Reliability | None:
    """From the predictions on file: each holds the probability of the predicted class."""
    scores = run.scores
    if scores is None or not scores.predictions or "ece" not in scores.metrics:
        return None
    confidence = np.array([row["probability"] for row in scores.predictions], dtype=np.float64)
    wrong = np.array([not is_right(run, row) for row in scores.predictions], dtype=np.int64)
    # The predicted class is the only one of a table with one column: label 0 is right.
    return reliability(wrong, confidence[:, None])
