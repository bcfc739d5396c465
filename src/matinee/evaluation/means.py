"""What a network says of each sample: the mean over its views, from all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from matinee.data.batch import Batch
from matinee.data.epochs import EpochLoader
from matinee.errors import ConfigError, MatineeError
from matinee.evaluation.ranks import gather_rows

Autocast = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class SampleMeans:
    """index: int64 [N], the rows of the pack that were asked for, in ascending order.

    values: float64 [N, D], means over the views that could be read, 0 without any. views: int64
    [N], how many could be.
    """

    index: NDArray[np.int64]
    values: NDArray[np.float64]
    views: NDArray[np.int64]


def mean_over_views(
    measure: Callable[[Batch], Tensor],
    loader: EpochLoader,
    autocast: Autocast = nullcontext,
    *,
    on_batch: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> SampleMeans | None:
    """Mean of `measure` over the views of each sample of an evaluation loader.

    On several ranks a collective: each reads the loader's share, all get all samples. See
    Note [Shares].

    Args:
        measure: numbers [B, D] of a batch; the network is in evaluation mode already.
        on_batch: called with the number of clips done so far, on this rank.
        should_stop: asked between batches; None is returned when it says yes, which it must on all
            ranks at once.

    Raises:
        MatineeError: not one sample could be read.
    """
    if loader.views is None:
        raise ConfigError("evaluation needs a loader made with views=(temporal, spatial)")
    rows, per_sample = loader.samples, loader.views[0] * loader.views[1]
    sums: NDArray[np.float64] | None = None  # [N, D], and how many views in one column more
    done = 0
    for batch in loader:
        if should_stop is not None and should_stop():
            return None
        with torch.no_grad(), autocast():
            values = measure(batch).double().cpu().numpy()
        values = np.column_stack([values, np.ones(len(batch))])
        if sums is None:
            sums = np.zeros((len(rows), values.shape[1]))
        # By place, not by row: a share may hold a sample twice, of which one counts.
        places = (done + np.arange(len(batch))) // per_sample
        assert np.array_equal(rows[places], batch.index.numpy()), "views come sample by sample"
        valid = batch.valid.cpu().numpy()
        np.add.at(sums, places[valid], values[valid])
        done += len(batch)
        if on_batch is not None:
            on_batch(done)
    assert sums is not None, "a selection is never empty"
    index, merged = gather_rows(rows, sums, loader.all_samples)
    means, count = merged[:, :-1], merged[:, -1]
    if not count.any():
        raise MatineeError(f"{loader.pack.path}: none of {len(index)} samples could be read")
    means /= np.maximum(count, 1)[:, None]
    return SampleMeans(index, means, count.astype(np.int64))


def sample_names(loader: EpochLoader, index: NDArray[np.int64]) -> tuple[str, ...]:
    """Ids of samples, by their rows of the pack."""
    names = loader.pack.samples.column("sample")
    return tuple(names[row].as_py() for row in index.tolist())


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, the mode it was in afterwards."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)
