"""Partial batch normalisation: keep the statistics of pretrained images while training on videos.

Source: TSN, arXiv 1608.00859, §3.3 ("partial BN"); TSM's Kinetics fine-tuning uses it too.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from matinee.errors import ConfigError
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
