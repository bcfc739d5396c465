"""What a report needs of a run folder: curves, seconds, scores. Pure functions of the rows."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from matinee.errors import ConfigError
from matinee.measure.report.metrics import HEADLINES
from matinee.tasks.classification import ClassificationTask
from matinee.tasks.contrastive import ContrastiveTask
from matinee.tasks.masked import MaskedTask
from matinee.training.config import TrainConfig
from matinee.training.state.runfolder import RunFolder

Axis = Literal["epoch", "step", "clips", "hours"]
AXES: dict[Axis, str] = {
    "epoch": "epoch", "step": "step", "clips": "clips seen", "hours": "hours of recorded time",
}  # fmt: skip
"""What curves can be drawn over, and how the axis is called."""
OTHER = "other"
SPANS = ("data_wait", "h2d", "forward", "backward", "comm", "optimizer", "validate", "save")
_IN_WINDOW = frozenset(SPANS) - {"validate", "save"}
_MOST_POINTS = 400
_NO_METRICS = frozenset(("step", "epoch", "samples", "skipped"))
_PREDICTIONS: dict[str, dict[str, type | tuple[type, ...]]] = {
    ClassificationTask.kind: {
        "sample": str, "index": int, "label": str, "predicted": str, "probability": (int, float),
    },
    ContrastiveTask.kind: {"sample": str, "index": int, "text": str, "rank": int, "nearest": str},
    MaskedTask.kind: {},
}  # fmt: skip
"""What a row of an eval file holds that the page shows, by the run's kind of task."""


@dataclass(frozen=True)
class Scores:
    """Final numbers of a run. `measured_on` says which samples they come from.

    metrics: every single number of the evaluation, by its name there. confusion: int64 [K, K], row
    = true class, where the task has one. predictions: the rows of an eval file; empty for a
    validation during training, which keeps none.
    """

    source: str
    measured_on: str
    split: str | None
    views: str
    data: str
    task: str
    metrics: dict[str, float]
    samples: int
    skipped: int
    classes: tuple[str, ...]
    confusion: NDArray[np.int64] | None
    predictions: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class RunData:
    """One run: `scores` is the evaluation that counts, None if it was never validated."""

    name: str
    path: Path
    config: TrainConfig
    environment: dict[str, Any]
    train: tuple[dict[str, Any], ...]
    val: tuple[dict[str, Any], ...]
    evaluations: tuple[Scores, ...]
    scores: Scores | None

    @property
    def kind(self) -> str:
        """Of its task: classification, contrastive or masked."""
        return self.config.task.kind

    @property
    def headline(self) -> str:
        """The validation metric that counts."""
        return HEADLINES[self.kind]


def read_runs(paths: Sequence[str | Path]) -> list[RunData]:
    """Read run folders; names are the folders', or their paths where two are alike.

    Raises:
        ConfigError: no run in a folder, or a damaged file.
    """
    folders = [Path(path) for path in paths]
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    unique = [
        name if names.index(name) == i else f"{name} ({names[:i].count(name) + 1})"
        for i, name in enumerate(names)
    ]
    return [_read_run(folder, name) for folder, name in zip(folders, unique, strict=True)]


def _read_run(path: Path, name: str) -> RunData:
    folder = RunFolder(path)
    config = folder.config()
    environment = path / "environment.json"
    rows = folder.rows()
    val = tuple(row for row in rows if row["kind"] == "val")
    evaluations = [
        _scores(_load(file), config, source=file.name) for file in sorted(path.glob("eval-*.json"))
    ]
    evaluations.sort(key=lambda found: found[0], reverse=True)  # stable: then by file name
    if not evaluations and val:
        evaluations = [_scores(val[-1], config, source="metrics.jsonl")]
    scores = tuple(found[1] for found in evaluations)
    return RunData(
        name=name,
        path=path,
        config=config,
        environment=_load(environment) if environment.exists() else {},
        train=tuple(row for row in rows if row["kind"] == "train"),
        val=val,
        evaluations=scores,
        scores=scores[0] if scores else None,
    )


def _load(file: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(file.read_text())
    except (ValueError, OSError) as error:
        raise ConfigError(f"{file} is damaged: {error}") from None
    if not isinstance(loaded, dict):
        raise ConfigError(f"{file} is damaged: it holds no JSON object")
    return loaded


def _scores(
    row: dict[str, Any], config: TrainConfig, *, source: str
) -> tuple[tuple[object, ...], Scores]:
    """Scores and their rank: the run's own validation split first, then the newest step, then the
    most views.
    """
    try:
        views = str(row.get("views", "1x1"))
        temporal, spatial = (int(part) for part in views.split("x"))
        own = config.data.val_split
        is_own = row.get("split") in ((own,) if own is not None else ("val", "test"))
        if row.get("kind") == "val":
            where = f"validation during training, epoch {row['epoch']}"
        else:
            where = f"split {row['split']}, views {views}, step {row['step']}"
        kind = str(row.get("task", config.task.kind))
        metrics = {key: float(held) for key, held in row.items() if _is_metric(key, held)}
        if HEADLINES[kind] not in metrics:
            raise KeyError(HEADLINES[kind])
        matrix = row.get("confusion")
        scores = Scores(
            source=source,
            measured_on=where,
            split=row.get("split", own),
            views=views,
            data=str(row.get("data", config.data.path)),
            task=kind,
            metrics=metrics,
            samples=int(row["samples"]),
            skipped=int(row["skipped"]),
            classes=tuple(row.get("classes") or row.get("per_class", ())),
            confusion=None if matrix is None else np.array(matrix, dtype=np.int64),
            predictions=_predictions(row.get("predictions", ()), config.task.kind),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{source} of {config.run.out} is damaged: {error!r}") from None
    if scores.confusion is not None and scores.confusion.shape != (len(scores.classes),) * 2:
        raise ConfigError(f"{source} of {config.run.out}: confusion does not fit its classes")
    return (is_own, int(row["step"]), temporal * spatial), scores


def _predictions(rows: Sequence[Any], kind: str) -> tuple[dict[str, Any], ...]:
    """The rows of an eval file.

    Raises:
        ValueError: a row without what the page shows of it.
    """
    for number, row in enumerate(rows):
        for key, wanted in _PREDICTIONS[kind].items():
            if not isinstance(row, dict) or not isinstance(row.get(key), wanted):
                raise ValueError(f"prediction {number} has no {key!r}, or one of another type")
    if kind == ContrastiveTask.kind:
        lost = {row["nearest"] for row in rows} - {row["sample"] for row in rows}
        if lost:
            raise ValueError(f"{min(lost)!r} is nearest to a caption and no sample")
    return tuple(rows)


def _is_metric(key: str, value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and key not in _NO_METRICS


def curve(
    run: RunData, rows: Sequence[dict[str, Any]], key: str, axis: Axis = "epoch"
) -> NDArray[np.float64]:
    """float64 [2, N]: places on an axis and values of `key` in rows of a run, averaged in groups
    down to 400 points.
    """
    held = [row for row in rows if row.get(key) is not None]
    values = np.array([row[key] for row in held], dtype=np.float64)
    pairs = np.stack([places(run, held, axis), values], axis=1)
    if len(pairs) <= _MOST_POINTS:
        return pairs.T
    return np.array([part.mean(axis=0) for part in np.array_split(pairs, _MOST_POINTS)]).T


def places(run: RunData, rows: Sequence[dict[str, Any]], axis: Axis) -> NDArray[np.float64]:
    """float64 [N]: where rows of a run lie on an axis.

    Clips are those trained on up to the row's step; hours are the recorded time up to the row:
    logged stretches of training, validations and saves.
    """
    if axis in ("epoch", "step"):
        return np.array([row[axis] for row in rows], dtype=np.float64)
    grown: list[tuple[int, bool, float]] = []
    for row in (*run.train, *run.val):
        is_val = row["kind"] == "val"
        grown.append((row["step"], is_val, _clips(row) if axis == "clips" else _hours(row)))
    grown.sort(key=lambda held: held[:2])  # a validation comes after the step's own row
    keys = [held[:2] for held in grown]
    sums = np.cumsum([held[2] for held in grown]) if grown else np.zeros(0)
    ends = [bisect_right(keys, (row["step"], row["kind"] == "val")) for row in rows]
    return np.array([sums[end - 1] if end else 0.0 for end in ends], dtype=np.float64)


def _clips(row: dict[str, Any]) -> float:
    return float(row.get("clips") or 0) if row["kind"] == "train" else 0.0


def _hours(row: dict[str, Any]) -> float:
    spans = row.get("spans", {})
    beside = sum(float(spans.get(name, 0.0)) for name in SPANS if name not in _IN_WINDOW)
    return (_window(row) + beside) / 3600


def _window(row: dict[str, Any]) -> float:
    """Seconds of the stretch of training that a row is of."""
    rate = row.get("clips_per_s")
    return float(row["clips"] / rate) if row.get("clips") and rate else 0.0


def span_seconds(run: RunData) -> dict[str, float]:
    """Seconds by span over the whole run, in the order of a step; OTHER is what the logged
    stretches of training took beyond their spans.
    """
    total: dict[str, float] = {}
    other = 0.0
    for row in (*run.train, *run.val):
        for name, seconds in row.get("spans", {}).items():
            total[name] = total.get(name, 0.0) + float(seconds)
    for row in run.train:
        inside = sum(s for name, s in row.get("spans", {}).items() if name in _IN_WINDOW)
        other += max(0.0, _window(row) - inside)
    names = [name for name in SPANS if name in total]
    names += sorted(set(total) - set(names))
    ordered = {name: total[name] for name in names}
    return ordered | {OTHER: other} if other > 0 else ordered


def comparable(runs: Sequence[RunData]) -> bool:
    """Whether the scores of runs of one kind come from as many samples of one pack and split, with
    the same views. A split that is not known counts as alike.
    """
    held = [run.scores for run in runs if run.scores]
    alike = {(Path(scores.data).resolve(), scores.views, scores.samples) for scores in held}
    return len(alike) <= 1 and len({scores.split for scores in held} - {None}) <= 1


def of_kind(runs: Sequence[RunData], kind: str) -> list[RunData]:
    return [run for run in runs if run.kind == kind]


def untimed_validations(run: RunData) -> int:
    """Validations whose seconds no row holds."""
    timed = sum("validate" in row.get("spans", {}) for row in (*run.train, *run.val))
    return max(0, len(run.val) - timed)


def clips_per_second(run: RunData) -> float | None:
    """Clips through the logged stretches of training; validation and waiting for a save at the
    end of an epoch are not part of them.
    """
    pairs = [(_clips(row), seconds) for row in run.train if (seconds := _window(row))]
    clips, seconds = (sum(column) for column in zip(*pairs, strict=True)) if pairs else (0, 0.0)
    return clips / seconds if seconds > 0 else None


def plain(value: Any) -> Any:
    """`value` as strict JSON can hold it: numbers that are not finite become None."""
    if isinstance(value, dict):
        return {str(key): plain(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [plain(held) for held in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
