"""Compressing gradients on their way between ranks."""

from __future__ import annotations

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from matinee.training.parallel.config import ParallelConfig

POWERSGD_START = 1000
"""Steps before PowerSGD begins: gradients change fastest at first (PyTorch's default)."""


def bucket_size(config: ParallelConfig, device: torch.device) -> float:
    """MiB of gradients that travel together.

    PowerSGD sends a bucket in several messages, each when the one before has arrived. Gloo starts
    them as they come, and those of two buckets could overtake each other: there all gradients
    travel in one.
    """
    alone = config.hook == "powersgd" and device.type == "cpu"
    return 2.0**20 if alone else config.bucket_mb


def add_hook(module: DistributedDataParallel, config: ParallelConfig) -> None:
    """Register the communication hook that `config.hook` names, if any.

    Source: PowerSGD with error feedback, arXiv 1905.13727, algorithm 2.
    """
    match config.hook:
        case "bf16":
            module.register_comm_hook(None, default_hooks.bf16_compress_hook)
        case "fp16":
            module.register_comm_hook(None, default_hooks.fp16_compress_hook)
        case "powersgd":
            # Without epsilon, a matrix of lower rank than is kept turns into NaN.
            state = powerSGD_hook.PowerSGDState(
                process_group=None, matrix_approximation_rank=config.powersgd_rank,
                start_powerSGD_iter=POWERSGD_START, orthogonalization_epsilon=1e-8,
            )  # fmt: skip
            module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
