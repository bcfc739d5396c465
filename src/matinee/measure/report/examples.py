"""Example clips of classification: which samples, and what runs say of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matinee.data.sampling import uniform_segments
from matinee.measure.report.rundata import RunData
from matinee.measure.report.strips import Strip, open_samples, read_strip
from matinee.tasks.config import ClassificationConfig
from matinee.tasks.vocabulary import split_labels
from matinee.training.setup import choose_splits


@dataclass(frozen=True)
class Candidate:
    """A sample that could be shown; `wrong` is None when nothing predicted it."""

    index: int
    sample: str
    label: str | None
    wrong: bool | None


@dataclass(frozen=True)
class Guess:
    """What a run says of a sample; `predicted` is None if it was not evaluated on it, or with
    another label.
    """

    run: str
    predicted: str | None
    probability: float
    right: bool


@dataclass(frozen=True)
class Example:
    """A sample to show."""

    label: str | None
    strip: Strip
    guesses: tuple[Guess, ...]


def choose(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """Up to `count` samples: one of each class in turn, every other one wrong where there are.

    With more classes than `count`, classes are evenly spaced over the sorted names. Within a class
    samples are taken in table order.
    """
    queues: dict[str, dict[bool, list[Candidate]]] = defaultdict(lambda: {True: [], False: []})
    for candidate in candidates:
        queues[candidate.label or ""][bool(candidate.wrong)].append(candidate)
    names = sorted(queues)
    if 0 < count < len(names):
        names = [names[i] for i in uniform_segments(len(names), count)]
    chosen: list[Candidate] = []
    want_wrong = True
    while len(chosen) < count and any(queues[n][True] or queues[n][False] for n in names):
        for name in names:
            queue = queues[name][want_wrong] or queues[name][not want_wrong]
            if queue and len(chosen) < count:
                chosen.append(queue.pop(0))
                want_wrong = not want_wrong
    return chosen


def find_examples(runs: Sequence[RunData], *, count: int) -> tuple[list[Example], str]:
    """Examples from what the last run was evaluated on, and a remark if there are none."""
    last = runs[-1]
    predictions = last.scores.predictions if last.scores else ()
    pack, remark = open_samples(last, predictions)
    if pack is None:
        return [], remark
    if predictions:
        candidates = [
            Candidate(row["index"], row["sample"], row["label"], not is_right(last, row))
            for row in predictions
        ]
    else:
        rows = pack.select(choose_splits(pack, last.config).val)
        table = pack.samples.select(["sample", "label"]).take(rows).to_pylist()
        candidates = [
            Candidate(int(index), row["sample"], row["label"], None)
            for index, row in zip(rows, table, strict=True)
        ]
    said = [
        (run, {row["sample"]: row for row in run.scores.predictions} if run.scores else {})
        for run in runs
    ]
    shown = [
        Example(
            label=candidate.label,
            strip=read_strip(pack, candidate.index),
            guesses=tuple(_guess(run, rows.get(candidate.sample), candidate) for run, rows in said),
        )
        for candidate in choose(candidates, count)
    ]
    return shown, ""


def is_right(run: RunData, row: dict[str, Any]) -> bool:
    """Whether a prediction is the sample's label, or with several labels one of them."""
    task = run.config.task
    if isinstance(task, ClassificationConfig) and task.labels == "multi":
        return row["predicted"] in split_labels(row["label"])
    return bool(row["predicted"] == row["label"])


def _guess(run: RunData, row: dict[str, Any] | None, candidate: Candidate) -> Guess:
    if row is None or row["label"] != candidate.label:
        return Guess(run.name, None, 0.0, False)
    return Guess(run.name, row["predicted"], row["probability"], is_right(run, row))
