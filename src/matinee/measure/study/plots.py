"""The plots of a search: over time, by setting, all settings at once, over epochs."""

from __future__ import annotations

from typing import Any

from matinee.measure.draw import page
from matinee.measure.draw.svg import Chart, Scale, around, label
from matinee.training.search.dimensions import Dimension, write_value
from matinee.training.search.result import StudyResult, TrialResult

_AXES = 9  # of parallel coordinates, at most


def history(study: StudyResult, name: str) -> str:
    """Scores in the order of trials, and the best so far."""
    scored = [(trial, _score(trial)) for trial in study.trials]
    values = [value for _, value in scored if value is not None]
    if not values:
        return ""
    last = max(trial.number for trial in study.trials)
    chart = Chart(
        Scale(-0.5, last + 0.5), around(values), about=f"{name} of each trial", size=(880, 300),
        x_name="trial", x_ticks=min(12, last + 1),
    )  # fmt: skip
    front: list[tuple[float, float]] = []
    for trial in study.complete:
        assert trial.value is not None
        better = not front or (
            trial.value > front[-1][1]
            if study.direction == "maximize"
            else trial.value < front[-1][1]
        )
        if better:
            if front:
                front.append((trial.number, front[-1][1]))
            front.append((trial.number, trial.value))
    if front:
        chart.line([*front, (last, front[-1][1])], "front", title="the best so far")
    for trial, value in scored:
        if value is not None:
            kind, told = _kind(trial, study), _about(trial, study)
            chart.dot(trial.number, value, kind, trial=trial.number, title=told)
    caption = "The line is the best so far. Point at a trial to find it in every plot."
    return _wide(chart, caption)


def slices(study: StudyResult, name: str) -> str:
    """The score over each dimension."""
    figures = ""
    for dimension in study.space:
        found = [
            (trial, trial.values[dimension.field], value)
            for trial in study.trials
            if (value := _score(trial)) is not None and dimension.drawn(trial.values)
        ]
        if len(found) < 2:
            continue
        chart = Chart(
            _scale(dimension), around([value for *_, value in found]),
            about=f"{name} over {dimension.name}", size=(330, 230), margins=(10, 12, 28, 48),
            x_ticks=4,
        )  # fmt: skip
        beside: dict[Any, int] = {}
        for trial, setting, value in sorted(found, key=lambda item: item[0] is study.best):
            place = write_value(setting) if dimension.choices else setting
            # Equal choices would hide each other.
            nth = beside.get(place, 0) if dimension.choices else 0
            beside[place] = nth + 1
            aside = 3 * ((nth + 1) // 2) * (-1) ** nth
            kind, told = _kind(trial, study), _about(trial, study)
            chart.dot(place, value, kind, trial=trial.number, title=told, nudge=aside)
        _, _, when = dimension.name.partition(" if ")
        only = f"only with {when.replace('=', ' ')}" if when else ""
        figures += page.figure(dimension.field, html=chart.markup(), caption=only)
    return f'<div class="grid small">{figures}</div>\n' if figures else ""


def importance(study: StudyResult) -> str:
    """Bars, the longest first."""
    if not study.importance:
        return ""
    rows = sorted(study.importance.items(), key=lambda item: -item[1])
    left, height = 250, 26
    marks = ""
    for number, (name, part) in enumerate(rows):
        y = number * height
        marks += label(left - 10, y + 17, name, anchor="end")
        marks += (
            f'<rect class="bar" x="{left}" y="{y + 5}" width="{max(1.0, 520 * part):.1f}" '
            'height="16" rx="3"></rect>'
        )
        marks += label(left + 520 * part + 8, y + 17, f"{100 * part:.0f} %", anchor="start")
    svg = (
        f'<svg viewBox="0 0 880 {len(rows) * height + 4}" role="img" '
        f'aria-label="Importance of each setting">{marks}</svg>'
    )
    caption = (
        "How much a setting alone tells the best quarter of complete trials from all of them "
        "(PED-ANOVA, arXiv 2304.10255). With few trials a hint, no more."
    )
    return f'<figure class="wide">{svg}<figcaption>{page.text(caption)}</figcaption></figure>\n'


def parallel(study: StudyResult, name: str) -> str:
    """A line a complete trial, across one axis a field and the score at the right."""
    complete = study.complete
    fields = _fields(study)[:_AXES]
    if len(complete) < 3 or not fields:
        return ""
    width, height, top, bottom = 880.0, 340.0, 34.0, 306.0
    score = around([trial.value or 0.0 for trial in complete])
    axes = [(field, _joint(field, study)) for field in fields]
    across = [60 + number * (width - 120) / len(axes) for number in range(len(axes) + 1)]
    marks, labels = "", ""
    names = [(field.rpartition(".")[2], scale) for field, scale in axes]
    for x, (title, scale) in zip(across, [*names, (name, score)], strict=True):
        marks += f'<path class="axis" d="M{x:.1f} {top}V{bottom}"></path>'
        marks += label(x, 16, title)
        for part, said in scale.ticks():
            labels += label(x + 5, bottom - part * (bottom - top) + 4, said, anchor="start")
    chart = _Lines(top, bottom)
    ranked = sorted(complete, key=lambda t: t.value or 0.0, reverse=study.direction == "minimize")
    for trial in ranked:  # the best is drawn last
        points = []
        for x, (field, scale) in zip(across, axes, strict=False):
            place = _part(trial, field, scale)
            if place is not None:
                points.append((x, place))
        points.append((across[-1], score.place(trial.value)))
        kind = "best" if trial is study.best else "complete"
        marks += chart.line(points, kind, trial.number, _about(trial, study))
    svg = (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="Settings and score of '
        f'each complete trial">{marks}{labels}</svg>'
    )
    caption = "Complete trials; a line leaves out settings that its trial does not have."
    return f'<figure class="wide">{svg}<figcaption>{page.text(caption)}</figcaption></figure>\n'


def curves(study: StudyResult, name: str) -> str:
    """Validations over epochs."""
    shown = [trial for trial in study.trials if len(trial.curve) > 1]
    if not shown:
        return ""
    values = [value for trial in shown for _, value in trial.curve]
    epochs = [epoch for trial in shown for epoch, _ in trial.curve]
    chart = Chart(
        Scale(min(epochs) - 0.2, max(epochs) + 0.2), around(values), about=f"{name} over epochs",
        size=(880, 320), x_name="epoch", x_ticks=min(12, max(epochs)),
    )  # fmt: skip
    for trial in sorted(shown, key=lambda t: (t is study.best, t.state == "complete")):
        kind = _kind(trial, study)
        chart.line(list(trial.curve), kind, trial=trial.number, title=_about(trial, study))
        if trial.state == "pruned":
            chart.dot(*trial.curve[-1], kind, trial=trial.number, title=_about(trial, study))
    return _wide(chart, "Rings: where trials were stopped, their best below the median of the "
                 "others at that epoch.")  # fmt: skip


class _Lines:
    """Polylines from parts of a height."""

    def __init__(self, top: float, bottom: float) -> None:
        self._top, self._bottom = top, bottom

    def line(self, points: list[tuple[float, float]], kind: str, trial: int, title: str) -> str:
        height = self._bottom - self._top
        placed = " ".join(f"{x:.1f},{self._bottom - part * height:.1f}" for x, part in points)
        return (
            f'<polyline class="{kind}" data-trial="{trial}" points="{placed}">'
            f"<title>{page.text(title)}</title></polyline>"
        )


def _wide(chart: Chart, caption: str) -> str:
    told = f"<figcaption>{page.text(caption)}</figcaption>"
    return f'<figure class="wide">{chart.markup()}{told}</figure>\n'


def _score(trial: TrialResult) -> float | None:
    """Of a trial that was stopped, its last validation."""
    if trial.value is not None:
        return trial.value
    return trial.curve[-1][1] if trial.curve and trial.state == "pruned" else None


def _kind(trial: TrialResult, study: StudyResult) -> str:
    return "best" if trial is study.best else "complete" if trial.state == "complete" else "pruned"


def _about(trial: TrialResult, study: StudyResult) -> str:
    """What a tooltip says."""
    value = _score(trial)
    score = f"{study.metric} {value:.4g}" if value is not None else trial.state
    settings = "\n".join(f"{field} {write_value(v)}" for field, v in trial.values.items())
    return f"trial {trial.number}: {score}\n{settings}"


def _fields(study: StudyResult) -> list[str]:
    """The most important ones first."""
    weight = dict.fromkeys((dimension.field for dimension in study.space), 0.0)
    for dimension in study.space:
        weight[dimension.field] += study.importance.get(dimension.name, 0.0)
    return sorted(weight, key=lambda field: -weight[field])


def _scale(dimension: Dimension) -> Scale:
    if dimension.choices:
        return Scale(names=tuple(write_value(choice) for choice in dimension.choices))
    if dimension.log:
        return Scale(dimension.low, dimension.high, log=True)
    return around([dimension.low, dimension.high])


def _joint(field: str, study: StudyResult) -> Scale:
    """A scale that holds the field's values under all conditions."""
    own = [dimension for dimension in study.space if dimension.field == field]
    if all(dimension.choices for dimension in own):
        names = dict.fromkeys(write_value(c) for dimension in own for c in dimension.choices)
        return Scale(names=tuple(names))
    values = [v for t in study.complete if (v := t.values.get(field)) is not None]
    ranges = [dimension for dimension in own if not dimension.choices]
    low = min([dimension.low for dimension in ranges] + values)
    high = max([dimension.high for dimension in ranges] + values)
    return Scale(low, high, log=all(dimension.log for dimension in ranges) and low > 0)


def _part(trial: TrialResult, field: str, scale: Scale) -> float | None:
    if field not in trial.values:
        return None
    value = trial.values[field]
    if scale.names:
        return scale.place(write_value(value))
    return scale.place(value) if value is not None else None
