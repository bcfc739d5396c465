"""Batch normalisation of pretrained images that stays as it is (partial), and over all ranks.

Source: TSN, arXiv 1608.00859, §3.3 ("partial BN"); TSM's Kinetics fine-tuning uses it too.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from matinee.errors import ConfigError
from matinee.extras import require
from matinee.models.non_local import NonLocal


def freeze_batch_norm(model: nn.Module, *, keep_first: bool = True) -> int:
    """Put all batch norms but the first into evaluation mode and stop training their parameters.

    `nn.Module.train()` undoes the mode, so a network with partial BN calls this at construction
    (before the optimizer collects parameters) and again at the end of its own `train()`; it may be
    called any number of times.

    For pretrained networks: timm starts the last norm of each residual branch at zero, and frozen
    there it would keep the branch silent for ever. The norms of non-local blocks, which start at
    zero in a pretrained network too, are therefore never frozen.

    Returns:
        How many are frozen.

    Raises:
        ConfigError: there is none to freeze.
    """
    new = {id(module.norm) for module in model.modules() if isinstance(module, NonLocal)}
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    frozen = [norm for norm in norms[1 if keep_first else 0 :] if id(norm) not in new]
    if not frozen:
        raise ConfigError(
            f"{type(model).__name__} has no batch norms to freeze: leave partial BN out"
        )
    for norm in frozen:
        norm.eval()
        norm.requires_grad_(False)
    return len(frozen)


def to_sync_batch_norm(model: nn.Module, device: torch.device) -> int:
    """Let batch norms take their statistics over the micro-batches of all ranks, in place.

    Frozen ones (partial BN) have no statistics to take and stay as they are, and so do all keys.

    Args:
        device: where the model is going to be.

    Returns:
        How many do.

    Raises:
        ConfigError: there is none, or the device is the CPU, for which PyTorch has no such norm.
    """
    if device.type == "cpu":
        raise ConfigError(
            "--parallel.sync-bn: PyTorch's synchronised batch normalisation runs on GPUs alone; "
            "leave it out on the CPU"
        )
    layers = require("timm.layers", "train")
    norms = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and (module.weight is None or module.weight.requires_grad)
    }
    if not norms:
        raise ConfigError(
            f"--parallel.sync-bn: {type(model).__name__} has no batch normalisation that is "
            "trained; leave it out"
        )
    for name, norm in norms.items():
        model.set_submodule(name, layers.convert_sync_batchnorm(norm))
    return len(norms)
