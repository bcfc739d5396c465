"""How convolutions lie in memory."""

from __future__ import annotations

import torch
from torch import nn

from matinee.models.frames import FrameModel


def to_channels_last(module: nn.Module, *, weights: bool = True) -> None:
    """Let convolutional networks compute with channels innermost, in place.

    Their frames come so, and so do the weights of 2-D and 3-D convolutions. A ViT's patches are
    embedded by a matrix product and stay as they are.

    Args:
        weights: False for FSDP2, which divides contiguous weights alone; convolutions follow their
            input, and weights are reordered whenever they are used.
    """
    for network in module.modules():
        if not isinstance(network, FrameModel):
            continue
        network.channels_last = True
        for part in network.modules() if weights else ():
            if isinstance(part, nn.Conv2d):
                part.to(memory_format=torch.channels_last)
            elif isinstance(part, nn.Conv3d):
                part.to(memory_format=torch.channels_last_3d)
