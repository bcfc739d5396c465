"""One page about a search for settings: what is best, what mattered, every trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matinee.files import write_whole
from matinee.measure.draw import page
from matinee.measure.draw.formats import ABSENT, duration
from matinee.measure.report.metrics import METRICS
from matinee.measure.report.rundata import plain
from matinee.measure.study.plots import curves, history, importance, parallel, slices
from matinee.training.search.dimensions import write_value
from matinee.training.search.result import StudyResult, TrialResult

_STYLE = """
.label { fill: var(--muted); font-size: 12px; paint-order: stroke; stroke: var(--page);
  stroke-width: 3px; }
.trials { font-size: 0.86rem; }
.trials th, .trials td { padding-left: 1rem; }
.trials td:nth-child(3) { text-align: left; }
.space td:last-child { white-space: normal; text-align: left; min-width: 18rem; color: var(--muted);
  font-size: 0.86rem; }
.space th:last-child { text-align: left; }
.trials thead th { white-space: nowrap; min-width: 0; }
.rule { stroke: var(--rule); fill: none; }
.axis { stroke: var(--muted); stroke-width: 0.8; fill: none; opacity: 0.6; }
.complete { fill: var(--run0); stroke: var(--page); stroke-width: 1.2; }
.pruned { fill: var(--page); stroke: var(--muted); stroke-width: 1.4; }
.best { fill: var(--run1); stroke: var(--page); stroke-width: 1.2; }
.failed { fill: none; stroke: var(--wrong); stroke-width: 1.8; }
polyline { fill: none; stroke-linejoin: round; stroke-linecap: round; }
polyline.complete { fill: none; stroke: var(--run0); stroke-width: 1.4; opacity: 0.45; }
polyline.pruned { fill: none; stroke: var(--muted); stroke-width: 1.1; opacity: 0.45; }
polyline.best { fill: none; stroke: var(--run1); stroke-width: 2.6; opacity: 1; }
polyline.front { stroke: var(--run0); stroke-width: 1.6; }
.own { stroke: var(--muted); stroke-width: 1.2; stroke-dasharray: 4 3; fill: none; }
.bar { fill: var(--run0); }
[data-trial] { cursor: default; }
polyline.on { stroke: var(--ink); stroke-width: 3; opacity: 1; }
circle.on, path.on { stroke: var(--ink); stroke-width: 2.6; }
tr.on td, tr.on th { background: var(--card); color: var(--ink); }
.small { grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); gap: 1.6rem 2rem; }
figure.wide { max-width: none; }
pre.command { white-space: pre-wrap; overflow-wrap: anywhere; }
"""
_SCRIPT = """
const mark = (trial, on) => document.querySelectorAll(`[data-trial="${trial}"]`)
  .forEach(found => found.classList.toggle("on", on));
for (const kind of ["pointerover", "pointerout"])
  document.addEventListener(kind, event => {
    const found = event.target.closest?.("[data-trial]");
    if (found) mark(found.dataset.trial, kind === "pointerover");
  });
"""


def write_study_page(path: Path, study: StudyResult) -> None:
    """Write a self-contained page; without any complete trial it says so."""
    write, name = metric_of(study.metric)
    parts = [
        ("best", "The best settings", _best(study, write)),
        ("history", "Trial after trial", history(study, name) + _legend()),
        ("importance", "What mattered", importance(study)),
        ("slices", "Setting by setting", slices(study, name)),
        ("parallel", "All settings at once", parallel(study, name)),
        ("curves", "Validation, epoch by epoch", curves(study, name)),
        ("trials", "All trials", _trials(study, write, name)),
        ("space", "What was searched", _space(study)),
    ]
    parts = [part for part in parts if part[2]]
    links = "".join(f'<li><a href="#{key}">{head}</a></li>' for key, head, _ in parts)
    html = (
        f"<style>{_STYLE}</style>\n<header>\n<h1>{page.text(study.title or 'A search')}</h1>\n"
        f"{page.paragraphs(summary(study))}"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n</header>\n<main>\n'
        + "".join(page.section(key, head, html=body) for key, head, body in parts)
        + f"</main>\n<script>{_SCRIPT}</script>"
    )
    data = plain(study.to_dict())
    whole = page.shell(f"{study.title or 'search'} – matinee tune", html=html, data=data)
    write_whole(path, whole.encode())


def metric_of(key: str) -> tuple[Callable[[float], str], str]:
    """How a metric is written, and its name."""
    found = next((metric for metric in METRICS if metric.key == key), None)
    return (found.write, found.name) if found else ("{:.4g}".format, key)


def summary(study: StudyResult) -> str:
    """In words: how many trials came to which end, and what the best one reaches."""
    write, name = metric_of(study.metric)
    complete, best = study.complete, study.best
    pruned = [trial for trial in study.trials if trial.state == "pruned"]
    early = sum(bool(trial.curve) for trial in pruned)
    counts = [
        f"{len(complete)} ran to the end" if complete else "",
        f"{early} stopped early" if early else "",
        f"{len(pruned) - early} did not get as far as a validation" if len(pruned) > early else "",
        *(
            f"{sum(t.state == state for t in study.trials)} {word}"
            for state, word in (
                ("failed", "failed"),
                ("running", "running"),
                ("waiting", "waiting"),
            )
            if any(t.state == state for t in study.trials)
        ),
    ]
    epochs = f"{study.epochs} epoch{'s' if study.epochs > 1 else ''}"
    spent = duration(sum(trial.seconds for trial in study.trials))
    said = (
        f"{len(study.trials)} trials of {epochs}, {spent} of training: "
        f"{', '.join(filter(None, counts))}."
    )
    if best is None or best.value is None:
        return said
    said += f" The best, trial {best.number}, reaches a {name} of {write(best.value)}"
    own = next((trial for trial in complete if trial.baseline), None)
    if own is best:
        return f"{said}: it has the recipe's own settings."
    if own is not None and own.value is not None:
        return f"{said}; the recipe's own settings {write(own.value)}."
    return f"{said}."


def _best(study: StudyResult, write: Callable[[float], str]) -> str:
    best = study.best
    if best is None:
        return page.note("No trial has ended with a validation yet.")
    own = next((trial for trial in study.complete if trial.baseline), None)
    runner_up = [t for t in study.complete if t is not best and t is not own]
    runner_up = sorted(
        runner_up, key=lambda t: t.value or 0.0, reverse=study.direction == "maximize"
    )[:2]
    shown = [best, *runner_up, *([own] if own is not None and own is not best else [])]
    fields = list(dict.fromkeys(dimension.field for dimension in study.space))
    names = [f"trial {trial.number}" + (" (recipe)" if trial is own else "") for trial in shown]
    rows: list[tuple[str, str, Sequence[str]]] = [
        ("strong", metric_of(study.metric)[1], [write(trial.value or 0.0) for trial in shown])
    ]
    for field in fields:
        rows.append(("", field, [_value(trial, field) for trial in shown]))
    html = page.table("The best trials", names, rows)
    if study.command:
        html += page.note("This trains the best settings once more:")
        html += f'<pre class="command" tabindex="0">{page.text(study.command)}</pre>\n'
    for edge in study.at_edge:
        html += page.note(
            f"{edge.field} {write_value(best.values[edge.field])} is at the edge of its range, "
            f"{_range(edge.text)}: a wider one may hold a better value."
        )
    return html + page.note(
        "A score is the last validation of its trial. The best of many scores on one validation "
        "split flatters: judge the winner on data that no trial was validated on."
    )


def _trials(study: StudyResult, write: Callable[[float], str], name: str) -> str:
    fields = list(dict.fromkeys(dimension.field for dimension in study.space))
    columns = [name, "", "epochs", "time", *(field.rpartition(".")[2] for field in fields)]
    head = "".join(f'<th scope="col">{page.text(column)}</th>' for column in ("trial", *columns))
    body = ""
    best = study.best
    order = sorted(study.trials, key=lambda trial: _rank(trial, study))
    for trial in order:
        score = trial.value if trial.value is not None else _last(trial)
        cells = [
            write(score) if score is not None else ABSENT, _ended(trial),
            str(trial.curve[-1][0]) if trial.curve else "0", duration(trial.seconds),
            *(_value(trial, field) for field in fields),
        ]  # fmt: skip
        kind = ' class="strong"' if trial is best else ""
        body += (
            f'<tr data-trial="{trial.number}"{kind}><th scope="row">{trial.number}</th>'
            + "".join(f"<td>{page.text(cell)}</td>" for cell in cells)
            + "</tr>\n"
        )
    html = (
        '<div class="scroll" role="region" tabindex="0" aria-label="All trials">'
        f'<table class="trials">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>'
        "</table></div>\n"
    )
    reasons = "".join(
        f"<li>trial {trial.number}: {page.text(trial.reason)}</li>"
        for trial in study.trials
        if trial.reason and not trial.curve
    )
    return html + (f'<ul class="note">{reasons}</ul>' if reasons else "")


def _ended(trial: TrialResult) -> str:
    if trial.state == "complete":
        return "the recipe's own" if trial.baseline else ""
    if trial.state == "pruned":
        return "stopped early" if trial.curve else trial.reason.partition(":")[0]
    return trial.state


def _space(study: StudyResult) -> str:
    rows: list[tuple[str, str, Sequence[str]]] = []
    for one in study.space:
        own = write_value(study.own[one.field]) if one.drawn(study.own) else ABSENT
        rows.append(("", one.name, [_range(one.text), own, one.why]))
    table = page.table("The search space", ["range", "recipe", "why"], rows)
    return f'<div class="space">{table}</div>\n'


def _range(text: str) -> str:
    return text.partition(" if ")[0].partition("=")[2]


def _value(trial: TrialResult, field: str) -> str:
    return write_value(trial.values[field]) if field in trial.values else ABSENT


def _last(trial: TrialResult) -> float | None:
    return trial.curve[-1][1] if trial.curve else None


def _rank(trial: TrialResult, study: StudyResult) -> tuple[Any, ...]:
    """Complete ones by score, then those stopped by how far they came."""
    sign = -1 if study.direction == "maximize" else 1
    if trial.value is not None:
        return (0, sign * trial.value, trial.number)
    last = _last(trial)
    return (1, -len(trial.curve), sign * last if last is not None else 0.0, trial.number)


def _legend() -> str:
    marks = (
        ("complete", "ran to the end"),
        ("best", "the best"),
        ("pruned", "stopped early, with the score it had then"),
    )
    items = "".join(
        f'<li><svg class="box" viewBox="0 0 12 12" aria-hidden="true"><circle class="{kind}" '
        f'cx="6" cy="6" r="5"></circle></svg>{name}</li>'
        for kind, name in marks
    )
    return f'<ul class="legend" aria-label="Marks">{items}</ul>\n'
