"""In which order samples are seen: a function of (seed, epoch), nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matinee.data.random import generator


def epoch_order(count: int, *, seed: int, epoch: int, shuffle: bool) -> NDArray[np.int64]:
    """A permutation of 0 … count - 1, [count]; the identity without `shuffle`."""
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    return generator(seed, epoch, 0, "order").permutation(count).astype(np.int64)


def batches_per_epoch(count: int, batch_size: int, *, drop_last: bool) -> int:
    """Whole batches, plus one shorter one unless it is dropped."""
    return count // batch_size if drop_last else -(-count // batch_size)


def batch_items(
    count: int, batch: int, batch_size: int, *, seed: int, epoch: int, shuffle: bool
) -> NDArray[np.int64]:
    """The items of batch number `batch` of an epoch, [up to batch_size]."""
    order = epoch_order(count, seed=seed, epoch=epoch, shuffle=shuffle)
    return order[batch * batch_size : (batch + 1) * batch_size]
