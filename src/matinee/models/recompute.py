"""Activation checkpointing: blocks are computed anew in the backward pass instead of being kept.

# Note [Recomputing]
A block's `forward` is replaced on the instance, so that no key of the state dict changes and hooks
around the block (FSDP2's, which fetch its weights) stay around both passes. What is random is drawn
alike twice. Batch normalisation would move its running statistics twice: the second pass works on
copies of them. `torch.compile` needs neither: it traces the block once, and its partitioner
computes activations anew, never the statistics.

Source: arXiv 1604.06174.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from matinee.errors import ConfigError
from matinee.models.blocks import find_blocks
from matinee.models.dual import DualEncoder
from matinee.models.text import SentenceText


def recompute_blocks(network: nn.Module, every: int) -> int:
    """Compute the first and then every n-th block anew in the backward pass, in training; 0: none.

    `network` is any of this package's or of timm's with residual or transformer blocks. Those of a
    dual encoder's towers are counted for each (a sentence encoder keeps nothing anyway).

    Returns:
        How many blocks are.

    Raises:
        ConfigError: a network without such blocks.
    """
    if not every:
        return 0
    parts = [network]
    if isinstance(network, DualEncoder):
        text = [] if isinstance(network.text, SentenceText) else [network.text]
        parts = [network.video, *text]
    chosen = [block for part in parts for block in _blocks(part)[::every]]
    for block in chosen:
        # Bound, so that a deep copy of the block is bound to the copy.
        block.forward = MethodType(_forward, block)
    return len(chosen)


def _blocks(network: nn.Module) -> list[nn.Module]:
    """The blocks, if most of the network's layers lie in them."""
    blocks = find_blocks(network)
    inside = {id(module) for block in blocks for module in block.modules()}
    layers = [id(m) for m in network.modules() if isinstance(m, nn.Conv2d | nn.Conv3d | nn.Linear)]
    known = sum(layer in inside for layer in layers)
    if not blocks or 2 * known < len(layers):
        raise ConfigError(
            f"{known} of the {len(layers)} layers of this {type(network).__name__} lie in blocks "
            "that are known (timm's residual and transformer blocks): choose a network such as "
            "resnet50, efficientnet_b0, convnext_tiny or a ViT, or --speed.recompute 0"
        )
    return blocks


def _forward(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Instead of the block's own forward."""
    forward = partial(type(block).forward, block)
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    if torch.compiler.is_compiling():
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    again = _OnCopies(block)
    return checkpoint(
        forward, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), again), **kwargs
    )


class _OnCopies(AbstractContextManager[None]):
    """While it lasts, batch normalisation in training mode updates copies of its statistics."""

    def __init__(self, block: nn.Module) -> None:
        self._norms = [m for m in block.modules() if isinstance(m, _BatchNorm) and m.training]
        self._own: list[dict[str, Tensor | None]] = []

    def __enter__(self) -> None:
        self._own = [dict(norm._buffers) for norm in self._norms]
        for norm, own in zip(self._norms, self._own, strict=True):
            norm._buffers.update({k: None if v is None else v.clone() for k, v in own.items()})

    def __exit__(self, *_: object) -> None:
        for norm, own in zip(self._norms, self._own, strict=True):
            norm._buffers.update(own)
