"""Example clips for a report: which samples, and their frames as pictures inside the page."""

from __future__ import annotations

import base64
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matinee.data.sampling import uniform_segments
from matinee.errors import MatineeError
from matinee.extras import require
from matinee.measure.rundata import RunData
from matinee.pack.reader import Pack
from matinee.training.setup import choose_splits

_FRAMES = 8
_HEIGHT = 96


@dataclass(frozen=True)
class Candidate:
    """A sample that could be shown; `wrong` is None when nothing predicted it."""

    index: int
    sample: str
    label: str | None
    wrong: bool | None


@dataclass(frozen=True)
class Guess:
    """What a run says of a sample; `predicted` is None if it was not evaluated on it."""

    run: str
    predicted: str | None
    probability: float
    right: bool


@dataclass(frozen=True)
class Example:
    """A sample to show: `images` are (data URI, seconds from its start), or `error` says why
    there are none.
    """

    sample: str
    label: str | None
    text: str | None
    size: tuple[int, int]
    images: tuple[tuple[str, float], ...]
    error: str
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
    scores = last.scores
    try:
        pack = Pack(scores.data if scores else last.config.data.path)
    except (MatineeError, OSError) as error:
        return [], f"No frames: {error}"
    if scores and scores.predictions:
        candidates = [
            Candidate(row["index"], name, row["label"], row["predicted"] != row["label"])
            for name, row in scores.predictions.items()
        ]
        names = pack.samples.column("sample")
        if any(c.index >= len(pack) or names[c.index].as_py() != c.sample for c in candidates):
            return [], f"No frames: {pack.path} has other samples than {scores.source} speaks of."
    else:
        rows = pack.select(choose_splits(pack, last.config).val)
        table = pack.samples.select(["sample", "label"]).take(rows).to_pylist()
        candidates = [
            Candidate(int(index), row["sample"], row["label"], None)
            for index, row in zip(rows, table, strict=True)
        ]
    chosen = choose(candidates, count)
    return [_example(pack, candidate, runs) for candidate in chosen], ""


def _example(pack: Pack, candidate: Candidate, runs: Sequence[RunData]) -> Example:
    info = pack.info(candidate.index)
    size = (_HEIGHT, max(2, 2 * round(_HEIGHT * info.width / info.height / 2)))
    images: tuple[tuple[str, float], ...] = ()
    error = ""
    try:
        # Fewer frames than pictures: show each once.
        frames = np.unique(uniform_segments(info.num_frames, _FRAMES)).tolist()
        video_THWC = pack.read(candidate.index, frames, size=size)
        images = tuple(
            (jpeg_uri(image_HWC), frame / float(info.fps))
            for frame, image_HWC in zip(frames, video_THWC, strict=True)
        )
    except MatineeError as problem:
        error = f"No frames: {problem}"
    guesses = []
    for run in runs:
        scores = run.scores
        row = scores.predictions.get(candidate.sample) if scores else None
        if row is None or row["label"] != candidate.label:
            guesses.append(Guess(run.name, None, 0.0, False))
        else:
            right = row["predicted"] == row["label"]
            guesses.append(Guess(run.name, row["predicted"], row["probability"], right))
    return Example(
        sample=candidate.sample,
        label=candidate.label,
        text=info.text,
        size=size,
        images=images,
        error=error,
        guesses=tuple(guesses),
    )


def jpeg_uri(image_HWC: NDArray[np.uint8]) -> str:
    """A picture, uint8 RGB [H, W, 3], as the address of an <img> that needs no file."""
    buffer = io.BytesIO()
    image = require("PIL.Image", "train").fromarray(image_HWC)
    image.save(buffer, format="JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
