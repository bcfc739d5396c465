"""Optimizers by name, with decay and learning rate where they belong."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from matinee.errors import ConfigError
from matinee.extras import require
from matinee.models.joint import JointModel
from matinee.models.weights.names import classifiers, image_network
from matinee.training.optim.config import OptimConfig

_EMBEDDINGS = {
    "pos_embed", "temporal_embed", "positional_embedding", "cls_token", "reg_token", "mask_token",
}  # fmt: skip
"""Learned positions and tokens, which are no weights though they have several dimensions."""
_BEFORE_BLOCKS = _EMBEDDINGS | {"patch_embed", "norm_pre"}


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """SGD or AdamW, fused, or Lion, over `parameter_groups`. The loop sets the groups' rates."""
    groups = parameter_groups(model, config)
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=True)
    if config.name == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)
    lion: torch.optim.Optimizer = require("timm.optim", "train").Lion(
        groups, lr=config.lr, betas=config.betas
    )
    return lion


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """What is trained, by weight decay and by `lr_scale`: multiples of the rate of the step.

    Biases, norms (one dimension), positions and special tokens are not decayed.

    Raises:
        ConfigError: layer decay without a ViT of joint attention, or a classifier's rate without a
            classifier.
    Source: no decay on 1-D parameters, Bag of Tricks, arXiv 1812.01187, §3.1.
    """
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    scales = _lr_scales(model, config)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decayed = parameter.ndim > 1 and name.rpartition(".")[2] not in _EMBEDDINGS
            groups.setdefault((scales[name], decayed), []).append(parameter)
    return [
        {
            "params": groups[scale, decayed],
            "weight_decay": config.weight_decay if decayed else 0.0,
            "lr_scale": scale,
        }
        for scale, decayed in sorted(groups, reverse=True)
    ]


def _lr_scales(model: nn.Module, config: OptimConfig) -> dict[str, float]:
    """By what each parameter's rate is multiplied."""
    scales = {name: 1.0 for name, _ in model.named_parameters()}
    if config.layer_decay != 1:
        if not isinstance(model, JointModel):
            raise ConfigError(
                f"--optim.layer-decay {config.layer_decay} is for fine-tuning a ViT with joint "
                "attention: leave it at 1"
            )
        depth = len(model.backbone.blocks)
        for name in scales:
            scales[name] = config.layer_decay ** (depth + 1 - layer_of(name, depth))
    if config.head_lr != 1:
        heads = tuple(f"backbone.{head}." for head in classifiers(image_network(model)))
        found = [name for name in scales if heads and name.startswith(heads)]
        if not found:
            raise ConfigError(
                f"--optim.head-lr {config.head_lr}: this network has no classifier; leave it at 1"
            )
        for name in found:
            scales[name] *= config.head_lr
    return scales


def layer_of(name: str, depth: int) -> int:
    """Which layer of a `JointModel` with `depth` blocks a parameter belongs to.

    0 before the blocks, i + 1 for block i, depth + 1 after them (norm and classifier).
    """
    first, _, rest = name.removeprefix("backbone.").partition(".")
    if first == "blocks":
        return int(rest.partition(".")[0]) + 1
    return 0 if first in _BEFORE_BLOCKS else depth + 1
