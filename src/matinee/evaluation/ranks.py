"""Evaluation on several ranks that counts every sample once.

# Note [Shares]
Each rank evaluates a share of the samples, and embeds a share of the texts. Shares are equally
long, so that all ranks call the network equally often (with sharded weights each call is a
collective); to get there the last ones repeat some items. What the ranks have is merged by item,
each counted once, and every rank ends with all of it. Metrics are computed on rank 0 alone, whose
results, or error, the others get: a matrix of similarities need not lie in memory on every rank.

Arrays travel as tensors, in pieces: through the host's own backend where the process group has
one, else by way of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from matinee.errors import MatineeError
from matinee.evaluation.arrays import row_chunks

T = TypeVar("T")
Rows = tuple[NDArray[np.int64], NDArray[Any]]  # index [n], values [n, …]


def merge_rows(parts: Sequence[Rows], expected: NDArray[np.int64]) -> Rows:
    """The rows of all ranks, each index once, in ascending order.

    Of a repeated index the first row counts (the lowest rank's), so the result does not depend on
    timing.

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

    A collective: all ranks must call it, each with as many rows as the others.

    Args:
        values: numbers [n, …].

    Raises:
        MatineeError: as `merge_rows`, or ranks with arrays of different shapes; on all ranks alike.
    """
    if world_size() == 1:
        return merge_rows([(index, values)], expected)
    held: list[Any] = [None] * world_size()
    dist.all_gather_object(held, (values.shape, str(values.dtype)))
    if len(set(held)) > 1:
        told = ", ".join(f"rank {r} {shape} {kind}" for r, (shape, kind) in enumerate(held))
        raise MatineeError(f"ranks evaluated shares of different shapes: {told}")
    return merge_rows(list(zip(_gather(index), _gather(values), strict=True)), expected)


def share(count: int) -> NDArray[np.int64]:
    """Which of `count` items this rank takes, in order; see Note [Shares]."""
    each = -(-count // world_size())
    return (rank() * each + np.arange(each)) % count


def fresh(count: int) -> int:
    """How many of this rank's `share` come first in it and on no lower rank."""
    each = -(-count // world_size())
    return int(np.clip(count - rank() * each, 0, each))


def add_up(number: int) -> int:
    """The sum over ranks. A collective."""
    return number if world_size() == 1 else int(_gather(np.array([number])).sum())


def on_first(compute: Callable[[], T]) -> T:
    """What `compute` returns on rank 0, where alone it runs, on every rank. A collective.

    Raises:
        MatineeError: `compute` raised it; then on all ranks.
    """
    if world_size() == 1:
        return compute()
    box: list[Any] = [None, None]
    if rank() == 0:
        try:
            box[0] = compute()
        except MatineeError as error:
            box[1] = error
    dist.broadcast_object_list(box, src=0)
    if box[1] is not None:
        raise box[1]
    value: T = box[0]
    return value


def world_size() -> int:
    """How many ranks evaluate together; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is."""
    return dist.get_rank() if world_size() > 1 else 0


def _gather(array: NDArray[Any]) -> NDArray[Any]:
    """[n, …] of each rank → [ranks, n, …]."""
    own = np.ascontiguousarray(array).reshape(len(array), -1)
    every = np.empty((world_size(), *own.shape), dtype=own.dtype)
    on_host = "cpu:" in dist.get_backend_config()
    device = torch.device("cpu") if on_host else torch.device("cuda", torch.cuda.current_device())
    for rows in row_chunks(own):
        piece = torch.from_numpy(own[rows]).to(device)
        pieces = [torch.empty_like(piece) for _ in range(world_size())]
        dist.all_gather(pieces, piece)
        for number, received in enumerate(pieces):
            every[number, rows] = received.cpu().numpy()
    return every.reshape(world_size(), *array.shape)
