"""ZeRO-1: each rank keeps the optimizer state of its share of the weights."""

from __future__ import annotations

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from matinee.training.optim.build import optimizer_class
from matinee.training.optim.config import OptimConfig
from matinee.training.optim.groups import parameter_groups


def divided_optimizer(
    model: nn.Module, config: OptimConfig, *, fused: bool = True
) -> ZeroRedundancyOptimizer:
    """As `build_optimizer`; a rank updates its share of the weights and sends them to the others.

    Whole tensors are shared out, so that rates by layer (LAMB, LARS, Muon) see all of them.

    Source: ZeRO, arXiv 1910.02054, §5.1.
    """
    kind, settings = optimizer_class(config, fused=fused)
    return ZeroRedundancyOptimizer(
        parameter_groups(model, config), optimizer_class=kind, **settings
    )
