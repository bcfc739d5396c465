"""Optimizers by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from matinee.extras import require
from matinee.training.optim.config import OptimConfig
from matinee.training.optim.groups import parameter_groups


def build_optimizer(
    model: nn.Module, config: OptimConfig, *, fused: bool = True
) -> torch.optim.Optimizer:
    """The optimizer of a config over `parameter_groups`. The loop sets the groups' rates."""
    divided = any(isinstance(parameter, DTensor) for parameter in model.parameters())
    # torch has no fused SGD for tensors that FSDP divides.
    kind, settings = optimizer_class(config, fused=fused and not (divided and config.name == "sgd"))
    return kind(parameter_groups(model, config), **settings)


def optimizer_class(
    config: OptimConfig, *, fused: bool = True
) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """Which optimizer, and its settings beside those of its groups.

    Args:
        fused: update all weights in one kernel where there is one: SGD, Adam, AdamW.

    Raises:
        MissingExtra: timm is not installed (lion, lamb, lars, muon).
    """
    # None leaves the choice of kernels to torch; False would take the slowest.
    one_kernel = {"lr": config.lr, "fused": True if fused else None}
    match config.name:
        case "sgd":
            return torch.optim.SGD, {"momentum": config.momentum, **one_kernel}
        case "adam":
            return torch.optim.Adam, {"betas": config.betas, **one_kernel}
        case "adamw":
            return torch.optim.AdamW, {"betas": config.betas, **one_kernel}
    timm = require("timm.optim", "train")
    settings: dict[str, Any] = {"lr": config.lr}
    if config.name in ("lars", "muon"):
        settings["momentum"] = config.momentum
    if config.name in ("lion", "lamb", "muon"):
        settings["betas"] = config.betas
    if config.name == "lamb":
        settings["max_grad_norm"] = None  # gradients are clipped before, over all ranks' parameters
    if config.name == "muon":
        # See Note [Muon and AdamW] in groups.py; five Newton-Schulz steps as published.
        settings |= {
            "ns_coefficients": "original",
            "adjust_lr_fn": "match_rms_adamw",
            "fallback_lr_scale": 1.0,  # before timm 1.0.27, AdamW's rate followed no schedule
        }
    kinds = {"lion": timm.Lion, "lamb": timm.Lamb, "lars": timm.Lars, "muon": timm.Muon}
    return kinds[config.name], settings
