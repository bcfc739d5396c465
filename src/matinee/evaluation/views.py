"""Predict every view of every sample and average."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from matinee.data.batch import Batch
from matinee.data.epochs import EpochLoader
from matinee.errors import ConfigError, MatineeError
from matinee.evaluation.means import Autocast, evaluation_mode, mean_over_views, sample_names
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
    autocast: Autocast = nullcontext,
    *,
    average: Average = "probabilities",
    on_batch: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> ViewScores | None:
    """Class probabilities of each labelled sample of an evaluation loader, on every rank.

    Args:
        average: what is averaged over views: probabilities (Non-local Networks, arXiv 1711.07971,
            §4), or logits, whose mean then becomes probabilities (TSM's code).
        on_batch, should_stop: as `mean_over_views` takes them.

    Raises:
        MatineeError: not one sample could be read, or none of those has a label.
    """

    def scores(batch: Batch) -> Tensor:
        logits = task.logits(batch).double()
        return logits if average == "logits" else task.probabilities(logits)

    with evaluation_mode(task):
        means = mean_over_views(
            scores, loader, autocast, on_batch=on_batch, should_stop=should_stop
        )
    if means is None:
        return None
    targets = loader.targets[means.index]
    labelled = targets.any(axis=1) if targets.ndim == 2 else targets >= 0
    used = (means.views > 0) & labelled
    if not used.any():
        raise MatineeError(
            f"{loader.pack.path}: none of {len(used)} samples could be evaluated: "
            f"{int((means.views > 0).sum())} could be read, and those have no label"
        )
    probabilities = means.values[used]
    if average == "logits":
        probabilities = task.probabilities(torch.from_numpy(probabilities)).numpy()
    return ViewScores(
        index=means.index[used],
        samples=sample_names(loader, means.index[used]),
        targets=targets[used],
        probabilities=probabilities,
        skipped=sample_names(loader, means.index[~used]),
    )
