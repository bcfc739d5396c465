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
