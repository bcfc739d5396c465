"""FSDP2: weights, gradients and optimizer state divided among ranks.

# Note [Divided weights]
Each block of a network is a unit: its weights are gathered before it runs and freed after. What
lies outside of blocks is one more unit, the root. Weights become DTensors, each rank holding a
slice of the first dimension.

A scalar cannot be sliced. The temperature of contrastive learning therefore stays whole on every
rank, and `reduce_whole` (whole.py) averages its gradient.

A checkpoint holds whole tensors, gathered one after the other: it is the same file that one process
or DDP would write, and any number of ranks, divided or not, can go on from it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from matinee.models.blocks import find_blocks
from matinee.training.parallel.ranks import Ranks

_METHODS = ("embed_video", "embed_text")
"""Through which evaluation calls a network besides `forward`."""


def divide(model: nn.Module, ranks: Ranks, *, bf16: bool) -> FSDPModule:
    """Divide a network's weights, in place.

    They must be contiguous: see `to_channels_last`.
    """
    mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    exact = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    # Inputs stay as they are: autocast decides, and what is learned from pixels keeps them exact.
    policy = replace(exact, param_dtype=torch.bfloat16 if bf16 else None)
    scalars = {p for p in model.parameters() if p.ndim == 0}
    settings: dict[str, Any] = {"mesh": mesh, "mp_policy": policy, "ignored_params": scalars}
    if bf16:  # batch normalisation takes no weights of less precision than its statistics
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                fully_shard(module, **{**settings, "mp_policy": exact})
    for block in find_blocks(model):
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    assert isinstance(model, FSDPModule)
    for name in _METHODS:
        if hasattr(model, name):
            register_fsdp_forward_method(model, name)
    return model
