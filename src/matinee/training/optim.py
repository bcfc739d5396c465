"""Optimizers by name, with decay where it belongs."""

from __future__ import annotations

import torch
from torch import nn

from matinee.training.config import OptimConfig


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """SGD or AdamW, fused; biases and norm parameters (one dimension) are not decayed.

    Source: no decay on 1-D parameters, Bag of Tricks, arXiv 1812.01187, §3.1.
    """
    decayed = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    plain = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=True)
    return torch.optim.AdamW(groups, lr=config.lr, fused=True)
