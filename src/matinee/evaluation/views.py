"""Predict every view of every sample and average the probabilities."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from matinee.data.loader import ClipLoader
from matinee.errors import ConfigError, MatineeError
from matinee.evaluation.classification import ClassificationResult
from matinee.tasks.classification import ClassificationTask


def parse_views(text: str) -> tuple[int, int]:
    """(temporal, spatial) from "3x1".

    Raises:
        ConfigError: not of that form.
    """
    parts = text.lower().split("x")
    if len(parts) == 2 and all(part.isdigit() and int(part) > 0 for part in parts):
        return int(parts[0]), int(parts[1])
    raise ConfigError(f"views {text!r}: expected TEMPORALxSPATIAL, such as 3x1 or 10x3")


def run_views(
    task: ClassificationTask,
    loader: ClipLoader,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    *,
    on_batch: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> ClassificationResult | None:
    """Mean class probabilities over the views of each labelled sample of an evaluation loader.

    Args:
        on_batch: called with the number of clips done so far.
        should_stop: asked between batches; None is returned when it says yes.

    Raises:
        MatineeError: not one sample could be read.
    """
    if loader.views is None:
        raise ConfigError("evaluation needs a loader made with views=(temporal, spatial)")
    num_classes = len(loader.classes)
    rows, inverse = np.unique(loader.samples, return_inverse=True)
    assert np.array_equal(inverse, np.arange(len(rows))), "samples are in table order"
    total = np.zeros((len(rows), num_classes))
    count = np.zeros(len(rows))
    labels = np.full(len(rows), -1, dtype=np.int64)
    was_training, done = task.training, 0
    task.eval()
    try:
        for batch in loader:
            if should_stop is not None and should_stop():
                return None
            with autocast():
                probabilities = task.predict(batch).double().cpu().numpy()
            places = np.searchsorted(rows, batch.index.numpy())
            valid = batch.valid.cpu().numpy()
            np.add.at(total, places[valid], probabilities[valid])
            np.add.at(count, places[valid], 1)
            labels[places] = batch.target.cpu().numpy()
            done += len(batch)
            if on_batch is not None:
                on_batch(done)
    finally:
        task.train(was_training)
    names = loader.pack.samples.column("sample")
    read = (count > 0) & (labels >= 0)
    if not read.any():
        raise MatineeError(f"{loader.pack.path}: none of {len(rows)} samples could be evaluated")
    return ClassificationResult(
        classes=loader.classes,
        index=rows[read],
        samples=tuple(names[int(row)].as_py() for row in rows[read]),
        labels=labels[read],
        probabilities=total[read] / count[read, None],
        skipped=tuple(names[int(row)].as_py() for row in rows[~read]),
    )
