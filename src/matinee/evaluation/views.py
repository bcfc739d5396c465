"""Predict every view of every sample and average."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from matinee.data.epochs import EpochLoader
from matinee.errors import ConfigError, MatineeError
from matinee.tasks.classification import ClassificationTask

Average = Literal["probabilities", "logits"]


@dataclass(frozen=True)
class ViewScores:
    """Predictions over a set of samples.

    index: int64 [N], rows of the pack. probabilities: float64 [N, K], averaged over views.
    targets: int64 [N] or float32 [N, K]. skipped: ids of samples none of whose views could be read,
    or that have no label.
    """

    index: NDArray[np.int64]
    samples: tuple[str, ...]
    targets: NDArray[Any]
    probabilities: NDArray[np.float64]
    skipped: tuple[str, ...]


def parse_views(text: str) -> tuple[int, int]:
    """(temporal, spatial) from "3x1".

    Raises:
        ConfigError: not of that form.
    """
    parts = text.lower().split("x")
    if len(parts) == 2 and all(part.isdecimal() and int(part) > 0 for part in parts):
        return int(parts[0]), int(parts[1])
    raise ConfigError(f"views {text!r}: expected TEMPORALxSPATIAL, such as 3x1 or 10x3")


def run_views(
    task: ClassificationTask,
    loader: EpochLoader,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    *,
    average: Average = "probabilities",
    on_batch: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> ViewScores | None:
    """Class probabilities of each labelled sample of an evaluation loader.

    Args:
        average: what is averaged over views: probabilities (Non-local Networks, arXiv 1711.07971,
            §4), or logits, whose mean then becomes probabilities (TSM's code).
        on_batch: called with the number of clips done so far.
        should_stop: asked between batches; None is returned when it says yes.

    Raises:
        MatineeError: not one sample could be read.
    """
    if loader.views is None:
        raise ConfigError("evaluation needs a loader made with views=(temporal, spatial)")
    rows, inverse = np.unique(loader.samples, return_inverse=True)
    assert np.array_equal(inverse, np.arange(len(rows))), "samples are in table order"
    total: NDArray[np.float64] | None = None
    count = np.zeros(len(rows))
    was_training, done = task.training, 0
    task.eval()
    try:
        for batch in loader:
            if should_stop is not None and should_stop():
                return None
            with autocast():
                logits = task.logits(batch).double()
                scores = logits if average == "logits" else task.probabilities(logits)
            values = scores.cpu().numpy()
            if total is None:
                total = np.zeros((len(rows), values.shape[1]))
            places = np.searchsorted(rows, batch.index.numpy())
            valid = batch.valid.cpu().numpy()
            np.add.at(total, places[valid], values[valid])
            np.add.at(count, places[valid], 1)
            done += len(batch)
            if on_batch is not None:
                on_batch(done)
    finally:
        task.train(was_training)
    targets = loader.targets[rows]
    labelled = targets.any(axis=1) if targets.ndim == 2 else targets >= 0
    read = (count > 0) & labelled
    if total is None or not read.any():
        raise MatineeError(f"{loader.pack.path}: none of {len(rows)} samples could be evaluated")
    mean = total[read] / count[read, None]
    if average == "logits":
        mean = task.probabilities(torch.from_numpy(mean)).numpy()
    names = loader.pack.samples.column("sample")
    return ViewScores(
        index=rows[read],
        samples=tuple(names[int(row)].as_py() for row in rows[read]),
        targets=targets[read],
        probabilities=mean,
        skipped=tuple(names[int(row)].as_py() for row in rows[~read]),
    )
