"""Evaluation on several ranks that counts every sample once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from matinee.errors import MatineeError

Rows = tuple[NDArray[np.int64], NDArray[Any]]  # index [n], values [n, …]


def merge_rows(parts: Sequence[Rows], expected: NDArray[np.int64]) -> Rows:
    """The rows of all ranks, each index once, in ascending order.

    A sampler gives every rank equally many samples and repeats some to get there; of a repeated
    index the first row counts (the lowest rank's), so the result does not depend on timing.

    Args:
        parts: (index, values) of each rank, rank 0 first; a rank may have none.
        expected: int64, the indices that must come out, each once, in any order.

    Raises:
        MatineeError: an expected index that no rank has, or one that nobody expected.
    """
    index = np.concatenate([part[0] for part in parts])
    values = np.concatenate([part[1] for part in parts])
    assert len(index) == len(values), "one row of values an index"
    once, first = np.unique(index, return_index=True)
    wanted = np.unique(expected)
    assert len(wanted) == len(expected), "expected indices are distinct"
    missing, extra = np.setdiff1d(wanted, once), np.setdiff1d(once, wanted)
    if len(missing):
        raise MatineeError(
            f"{len(missing)} of {len(wanted)} samples were evaluated on no rank, "
            f"the first is {missing[0]}"
        )
    if len(extra):
        raise MatineeError(
            f"{len(extra)} samples were evaluated that are not in the set, the first is {extra[0]}"
        )
    return once, values[first]


def gather_rows(
    index: NDArray[np.int64], values: NDArray[Any], expected: NDArray[np.int64]
) -> Rows:
    """`merge_rows` of what every rank has, on every rank; without a process group, of this one's.

    A collective: all ranks must call it.

    Raises:
        MatineeError: as `merge_rows`, then on all ranks alike.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return merge_rows([(index, values)], expected)
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, (index, values))
    return merge_rows(parts, expected)
