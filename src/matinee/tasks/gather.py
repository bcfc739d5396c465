"""Features of all ranks on every rank, with gradients that find their way back.

# Note [Gradients of gathered features]
The backward pass adds up, over ranks, the gradients of a rank's own rows. With W ranks of B clips,
W·B = N, and gradients *averaged* over ranks (as DistributedDataParallel does):

- global loss (every rank computes the rows of all N clips): each rank's backward computes the whole
  gradient, W of them are added up for its features, and averaging divides by W again. Divide the
  sum of the N losses by N (the valid ones, with masked clips).
- local loss (every rank computes the rows of its own B clips): the ranks' gradients together are
  the whole one. Divide the sum of the B losses by B (by the valid of all ranks over W, with masked
  clips), so that the average over ranks is the mean over all.

Either gives the gradient of one process with all N clips, for the towers as for the temperature.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


def gather_with_gradient(x: Tensor) -> Tensor:
    """[B, …] of each rank → [W·B, …], ranks in order; `x` itself without several processes.

    All ranks hold the same shape and dtype, as batches of training do.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return x
    gathered: Tensor = _Gather.apply(x)
    return gathered


def own_rows(x: Tensor) -> slice:
    """Where the rows of this rank's `x` lie among the gathered ones."""
    if not dist.is_available() or not dist.is_initialized():
        return slice(0, len(x))
    return slice(dist.get_rank() * len(x), (dist.get_rank() + 1) * len(x))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        ctx.rows = own_rows(x)
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        # Gloo has no reduce-scatter; features are small enough for all ranks to get all sums.
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total[ctx.rows]
