"""How well a masked autoencoder reconstructs clips it was not trained on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from torch import Tensor

from matinee.data.batch import Batch
from matinee.data.epochs import EpochLoader
from matinee.evaluation.means import Autocast, evaluation_mode, mean_over_views
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
    """`loss`: mean over samples of the mean over their views, each view with the mask that it
    always has in evaluation.

    Args:
        on_batch, should_stop: as `mean_over_views` takes them.

    Raises:
        MatineeError: not one sample could be read.
    """

    def error(batch: Batch) -> Tensor:
        hidden, decoded = task.masks(batch.seeds, batch.video.device)
        each: Tensor = task.model(batch.video, hidden, decoded)[0]
        return each[:, None]

    with evaluation_mode(task):
        means = mean_over_views(error, loader, autocast, on_batch=on_batch, should_stop=should_stop)
    if means is None:
        return None
    read = means.views > 0
    samples = int(read.sum())
    return Evaluated(
        {
            "loss": float(means.values[read].mean()),
            "samples": samples,
            "skipped": len(read) - samples,
        },
        [],
    )
