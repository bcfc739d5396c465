"""Temporal shift: a 2-D CNN sees neighbouring frames at no cost in parameters or FLOPs.

# Note [Temporal shift]
Features of all frames travel as one batch [B·T, C, H, W]. Before the first convolution of each
residual block, an eighth of the channels moves one frame forward in time and another eighth one
frame back; frames beyond the ends are zero. The shift lies inside the residual branch, so the
shortcut keeps the unshifted features ("residual placement").

Source: TSM, arXiv 1811.08383, §3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from matinee.errors import ConfigError


def temporal_shift(x: Tensor, frames: int, divisor: int = 8) -> Tensor:
    """Shift `C // divisor` channels one frame forward, as many one frame back.

    Args:
        x: [B·T, C, H, W], frames of a clip adjacent.
        frames: T.

    Returns:
        A new tensor like `x`. Channels 0 … C/d - 1 hold the next frame's, C/d … 2C/d - 1 the
        previous frame's features.
    """
    fold = x.shape[1] // divisor
    clips = x.view(-1, frames, *x.shape[1:])  # [B, T, C, H, W]
    out = clips.clone(memory_format=torch.preserve_format)
    out[:, :-1, :fold] = clips[:, 1:, :fold]
    out[:, -1, :fold] = 0
    out[:, 1:, fold : 2 * fold] = clips[:, :-1, fold : 2 * fold]
    out[:, 0, fold : 2 * fold] = 0
    return out.flatten(0, 1)


class ShiftedConv(nn.Module):
    """A convolution whose input is shifted in time first."""

    def __init__(self, conv: nn.Module, frames: int, divisor: int) -> None:
        super().__init__()
        self.conv, self.frames, self.divisor = conv, frames, divisor

    def forward(self, x: Tensor) -> Tensor:
        shifted: Tensor = self.conv(temporal_shift(x, self.frames, self.divisor))
        return shifted


def add_temporal_shift(model: nn.Module, frames: int, divisor: int = 8) -> list[str]:
    """Put a shift before the first convolution of every residual block, in place.

    A residual block is a timm module with `drop_path` (they carry it on the residual branch) that
    contains no other; blocks without a shortcut (`has_skip` False) are left alone.

    Returns:
        Names of the convolutions that were wrapped.

    Raises:
        ConfigError: the network has no such blocks.
    """
    blocks = {name: m for name, m in model.named_modules() if hasattr(m, "drop_path")}
    inner = {
        name: block
        for name, block in blocks.items()
        if not any(other.startswith(f"{name}.") for other in blocks)
    }
    wrapped = []
    for name, block in inner.items():
        if getattr(block, "has_skip", True) is False:
            continue
        first = _first_conv(block)
        if first is None:
            continue
        path, conv = first
        if conv.in_channels < divisor:
            raise ConfigError(f"{name}.{path} has {conv.in_channels} channels: none to shift")
        parent = block.get_submodule(path.rpartition(".")[0])
        setattr(parent, path.rpartition(".")[2], ShiftedConv(conv, frames, divisor))
        wrapped.append(f"{name}.{path}")
    if not wrapped:
        raise ConfigError(
            f"{type(model).__name__} has no residual blocks with convolutions to shift: choose a "
            "CNN such as resnet50, or --model.shift none"
        )
    return wrapped


def _first_conv(block: nn.Module) -> tuple[str, nn.Conv2d] | None:
    for path, module in block.named_modules():
        if path.split(".")[0] in ("downsample", "shortcut", "drop_path", "se"):
            continue
        if isinstance(module, nn.Conv2d):
            return path, module
    return None
