"""How the gradients of ranks become one: DistributedDataParallel, or FSDP2 with divided weights.

Both want the forward pass to go through them. Tasks differ in what they compute of a micro-batch,
so it is `Task.compute` that is wrapped. See Note [Gradients of gathered features] for what is
averaged, and Note [Divided weights] in fsdp.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from matinee.tasks.base import Task
from matinee.training.parallel.config import ParallelConfig
from matinee.training.parallel.hooks import add_hook, bucket_size
from matinee.training.parallel.ranks import Ranks


@dataclass(frozen=True)
class Wrapped:
    """A task on its ranks. `compute` is `Task.compute` by way of what joins them; `part(number)` is
    around the forward and backward pass of micro-batch `number` of `parts`.
    """

    compute: Callable[[Any], Any]
    part: Callable[[int], AbstractContextManager[object]]
    note: str = ""


class _Compute(nn.Module):
    """`Task.compute` as the forward pass of a module, as DistributedDataParallel needs it."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    def forward(self, part: Any) -> Any:
        return self.task.compute(part)


def wrap(task: Task, config: ParallelConfig, ranks: Ranks, *, parts: int, bf16: bool) -> Wrapped:
    """Join the ranks of a task whose weights are equal on all of them.

    Args:
        parts: micro-batches of a step on each rank.
        bf16: fsdp computes and gathers weights in bfloat16.
    """
    if ranks.world == 1:
        return Wrapped(task.compute, lambda number: nullcontext())
    if config.strategy == "fsdp":
        return _wrap_fsdp(task, config, ranks, parts=parts, bf16=bf16)
    # Inputs are on the device already, and buffers are averaged by `average_statistics`.
    module = DistributedDataParallel(
        _Compute(task), bucket_cap_mb=bucket_size(config, ranks.device),
        gradient_as_bucket_view=True, **own_buffers(),
    )  # fmt: skip
    add_hook(module, config)

    def part(number: int) -> AbstractContextManager[object]:
        last = number == parts - 1
        return nullcontext() if last or not config.no_sync else module.no_sync()

    hook = "" if config.hook == "none" else f", gradients sent as {config.hook}"
    zero = ", optimizer state divided (ZeRO-1)" if config.strategy == "zero1" else ""
    return Wrapped(module, part, f"{ranks.world} ranks, DDP{zero}{hook}")


def own_buffers() -> dict[str, Any]:
    """The argument of DistributedDataParallel by which each rank keeps its own buffers; later
    versions of PyTorch call it by another name.
    """
    later = "forward_sync_buffers"
    known = inspect.signature(DistributedDataParallel).parameters
    return {later if later in known else "broadcast_buffers": False}


def _wrap_fsdp(
    task: Task, config: ParallelConfig, ranks: Ranks, *, parts: int, bf16: bool
) -> Wrapped:
    from matinee.training.parallel.fsdp import divide

    root = divide(task.model, ranks, bf16=bf16)

    def part(number: int) -> AbstractContextManager[object]:
        last = number == parts - 1
        root.set_requires_gradient_sync(last or not config.no_sync)
        root.set_is_last_backward(last)
        return nullcontext()

    return Wrapped(task.compute, part, f"{ranks.world} ranks, FSDP2")


def average_statistics(model: nn.Module, ranks: Ranks) -> None:
    """Make the running statistics of batch normalisation the mean over ranks.

    After each step, so that every rank is in the same state whenever one is saved. It is one small
    message: two vectors for each batch normalisation that is not frozen.
    """
    if ranks.world == 1:
        return
    running = [
        buffer
        for module in model.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
        for buffer in (module.running_mean, module.running_var)
        if buffer is not None
    ]
    if not running:
        return
    flat = torch.cat([buffer.float() for buffer in running])
    ranks.sum(flat).div_(ranks.world)
    means = torch.split(flat, [buffer.numel() for buffer in running])
    for buffer, mean in zip(running, means, strict=True):
        buffer.copy_(mean)
