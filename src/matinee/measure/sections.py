"""The sections of a report: each a pure function of runs to markup."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from matinee.measure import page
from matinee.measure.examples import Example
from matinee.measure.plots import (
    LABELLED_CLASSES,
    SPAN_COLOURS,
    class_bars,
    confusion_plot,
    line_plot,
    share_bars,
)
from matinee.measure.rundata import (
    OTHER,
    RunData,
    clips_per_second,
    comparable,
    curve,
    span_seconds,
    untimed_validations,
)

_SPAN_NAMES = {
    "data_wait": "waiting for data", "h2d": "copy to the device", "forward": "forward",
    "backward": "backward", "comm": "communication", "optimizer": "optimizer",
    "validate": "validation", "save": "saving", OTHER: "rest of the loop",
}  # fmt: skip
_ABSENT = "–"
_MOST_CONFUSIONS = 20


def summary(runs: Sequence[RunData]) -> str:
    scores = [run.scores for run in runs]
    seconds = [span_seconds(run) for run in runs]
    rows: list[tuple[str, str, list[str]]] = [
        ("strong", "top-1", [_percent(s.top1 if s else None) for s in scores]),
        ("", "top-5", [_percent(s.top5 if s else None) for s in scores]),
        ("", "macro F1", [f"{s.macro_f1:.3f}" if s else _ABSENT for s in scores]),
        ("", "samples", [f"{s.samples:,}" if s else _ABSENT for s in scores]),
        ("", "skipped", [f"{s.skipped:,}" if s else _ABSENT for s in scores]),
        ("wrap", "measured on", [s.measured_on if s else "not validated" for s in scores]),
        ("group", "steps", [f"{r.train[-1]['step']:,}" if r.train else _ABSENT for r in runs]),
        ("", "epochs", [f"{r.train[-1]['epoch']:.4g}" if r.train else _ABSENT for r in runs]),
        ("", "clips/s in training", [_rate(clips_per_second(run)) for run in runs]),
        ("group", "recorded time", [_seconds(sum(s.values())) for s in seconds]),
    ]
    for span in _span_order(seconds):
        cells = [_seconds(s[span]) if span in s else _ABSENT for s in seconds]
        rows.append(("", _SPAN_NAMES.get(span, span), cells))
    few = min((len(s.classes) for s in scores if s), default=6)
    remarks = [
        "The runs were measured on different samples or with different views: their numbers are "
        "not directly comparable."
        if not comparable(runs)
        else "",
        f"With {few} classes, top-5 cannot be wrong." if few <= 5 else "",
    ]
    table = page.table("Final numbers of each run", [run.name for run in runs], rows)
    return table + page.note(" ".join(filter(None, remarks)))


def curves(runs: Sequence[RunData]) -> str:
    plots = [
        ("loss", "Training loss", [curve(r.train, "loss") for r in runs], False, 2.7),
        ("top1", "Validation top-1", [curve(r.val, "top1") for r in runs], True, 2.7),
        ("lr", "Learning rate", [curve(r.train, "lr") for r in runs], False, 1.7),
    ]
    html = ""
    for name, heading, curves, percent, height in plots:
        if not any(points.size for points in curves):
            html += page.figure(heading, html="", caption="No rows of this kind were logged.")
            continue
        told = [
            f"{run.name}: {points[1, 0]:.3g} at epoch {points[0, 0]:.3g}, "
            f"{points[1, -1]:.3g} at epoch {points[0, -1]:.3g}"
            for run, points in zip(runs, curves, strict=True)
            if points.size
        ]
        about = f"{heading} over epochs. {'; '.join(told)}."
        svg = line_plot(name, curves, about=about, percent=percent, height=height)
        html += page.figure(heading, html=svg)
    return page.run_legend([run.name for run in runs]) + f'<div class="grid">{html}</div>'


def confusion(runs: Sequence[RunData]) -> str:
    scored = [(run, run.scores) for run in runs if run.scores]
    if not scored:
        return page.note("No run was validated.")
    html = ""
    for i, (run, scores) in enumerate(scored):
        hits = int(np.trace(scores.confusion))
        about = f"Confusion matrix of {run.name}: {hits} of {scores.samples} on the diagonal."
        svg = confusion_plot(f"confusion{i}", scores.confusion, scores.classes, about=about)
        caption = f"{scores.source}: {scores.measured_on}"
        html += page.figure(f"Confusion matrix of {run.name}", html=svg, caption=caption)
    most = max(len(scores.classes) for _, scores in scored)
    html = (
        page.note(
            "Row: true class. Column: predicted class. Shading: part of the row's samples"
            + ("; numbers: samples." if most <= 16 else ".")
        )
        + f'<div class="grid">{html}{_class_bars(runs)}</div>'
    )
    for run, scores in scored:
        if len(scores.classes) > LABELLED_CLASSES:
            html += _frequent_confusions(run, np.array(scores.confusion), scores.classes)
    return html


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
        sums = s.confusion.sum(axis=1).tolist() if s else []
        right = s.confusion.diagonal().tolist() if s else []
        counts.append(dict(zip(s.classes if s else (), zip(right, sums, strict=True), strict=True)))
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


def example_clips(runs: Sequence[RunData], shown: Sequence[Example], remark: str) -> str:
    if not shown:
        return page.note(remark or "No examples were asked for.")
    predicted = any(guess.predicted is not None for ex in shown for guess in ex.guesses)
    how = (
        f"{len(shown)} samples, spread over the classes; every other one is a mistake of "
        f"{runs[-1].name}, as far as there are any, so the share of mistakes here says nothing "
        "about accuracy. "
        if predicted
        else f"{len(shown)} samples, spread over the classes, without predictions: these are "
        "kept by an evaluation (eval-*.json). "
    )
    html = page.note(how + "Frames are evenly spaced over the sample, in order.")
    for example in shown:
        html += _example(example, predicted)
    return html


def _example(example: Example, predicted: bool) -> str:
    height, width = example.size
    label = example.label if example.label is not None else "no label"
    images = "".join(
        f'<img src="{uri}" width="{width}" height="{height}" alt="frame at {at:.2f} s">'
        for uri, at in example.images
    )
    strip = f'<div class="strip">{images}</div>' if images else page.note(example.error)
    guesses = ""
    for guess in example.guesses if predicted else ():
        kind, mark = ("right", "✓ right") if guess.right else ("wrong", "✗ wrong")
        said = f"<b>{page.text(guess.predicted)}</b> {_percent(guess.probability)}"
        if guess.predicted is None:
            kind, mark, said = "none", "?", "no prediction on file"
        guesses += (
            f'<li><span class="mark {kind}">{mark}</span> '
            f'<span class="quiet">{page.text(guess.run)}:</span> {said}</li>'
        )
    caption = f'<p class="note">“{page.text(example.text)}”</p>' if example.text else ""
    return (
        f'<figure class="example" aria-label="Sample {page.text(example.sample)}">{strip}'
        f'<figcaption><span class="quiet">true:</span> <b>{page.text(label)}</b> '
        f'<span class="quiet">· {page.text(example.sample)}</span>{caption}'
        + (f'<ul class="guesses">{guesses}</ul>' if guesses else "")
        + "</figcaption></figure>\n"
    )


def time(runs: Sequence[RunData]) -> str:
    timed = [(run, spans) for run in runs if sum((spans := span_seconds(run)).values()) > 0]
    if not timed:
        return page.note("No times were recorded.")
    names = [run.name for run, _ in timed]
    seconds = [spans for _, spans in timed]
    order = _span_order(seconds)
    rows = []
    for span in order:
        cells = [
            f"{_seconds(held[span])} · {_percent(held[span] / sum(held.values()))}"
            if span in held
            else _ABSENT
            for held in seconds
        ]
        rows.append(("", _SPAN_NAMES.get(span, span), cells))
    rows.append(("strong", "together", [_seconds(sum(held.values())) for held in seconds]))
    told = "; ".join(
        f"{name}: " + ", ".join(f"{span} {spent:.3g} s" for span, spent in held.items())
        for name, held in zip(names, seconds, strict=True)
    )
    svg = share_bars("time", names, seconds, about=f"Share of the time by span. {told}.")
    remarks = ["Wall-clock time of the training process, over the logged rows."]
    if OTHER in order:
        remarks.append("Rest of the loop: what training took beyond the named parts.")
    for run, _ in timed:
        if missing := untimed_validations(run):
            remarks.append(
                f"{run.name}: the time of {missing} of {len(run.val)} validations was not logged."
            )
        if run.environment.get("gpu"):
            remarks.append(
                f"{run.name} ran on a machine with a GPU: work that a GPU does by itself counts "
                "where the process waits for it."
            )
    boxes = [(SPAN_COLOURS.get(s, SPAN_COLOURS["other"]), _SPAN_NAMES.get(s, s)) for s in order]
    return (
        page.box_legend(boxes)
        + page.figure("", html=svg)
        + page.table("Seconds and share of each span", names, rows)
        + page.note(" ".join(remarks))
    )


def configuration(runs: Sequence[RunData]) -> str:
    html = ""
    if len(runs) > 1:
        flat = [_flat(dataclasses.asdict(run.config)) for run in runs]
        keys = [key for key in flat[0] if len({json.dumps(held[key]) for held in flat}) > 1]
        rows = [("", key, [json.dumps(held[key]) for held in flat]) for key in keys]
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


def _span_order(seconds: Sequence[dict[str, float]]) -> list[str]:
    """Spans of any run, in the order of a step, OTHER last."""
    known = [name for name in _SPAN_NAMES if any(name in held for held in seconds)]
    rest = sorted({name for held in seconds for name in held} - set(known))
    return [*(n for n in known if n != OTHER), *rest, *(n for n in known if n == OTHER)]


def _percent(part: float | None) -> str:
    return _ABSENT if part is None else f"{100 * part:.1f} %"


def _rate(value: float | None) -> str:
    return _ABSENT if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _seconds(value: float) -> str:
    """3.42 s, 65.1 s, 12 min 05 s, 3 h 02 min."""
    if value < 120:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
