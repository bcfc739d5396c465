"""How well a masked autoencoder reconstructs clips it was not trained on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch

from matinee.data.epochs import EpochLoader
from matinee.errors import MatineeError
from matinee.evaluation.embeddings import Autocast
from matinee.evaluation.results import Evaluated
from matinee.tasks.masked import MaskedTask


def run_masked(
    task: MaskedTask,
    loader: EpochLoader,
    autocast: Autocast = nullcontext,
    *,
    on_batch: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Evaluated | None:
    """`loss`: mean over clips, each with the mask that its sample always has in evaluation.

    Raises:
        MatineeError: not one clip could be read.
    """
    total, clips, done = 0.0, 0, 0
    was_training = task.training
    task.eval()
    try:
        for batch in loader:
            if should_stop is not None and should_stop():
                return None
            with torch.no_grad(), autocast():
                total += float(task(batch).loss)
            clips += batch.num_valid
            done += len(batch)
            if on_batch is not None:
                on_batch(done)
    finally:
        task.train(was_training)
    if clips == 0:
        raise MatineeError(f"{loader.pack.path}: none of {loader.num_items} clips could be read")
    metrics = {"loss": total / clips, "samples": clips, "skipped": loader.num_items - clips}
    return Evaluated(metrics, [])
