"""Non-local blocks: attention over all places of all frames, inserted without effect at first.

Source: Non-local neural networks, arXiv 1711.07971, §3.2 (embedded Gaussian) and §3.3; placement
as with TSM, arXiv 1811.08383, §4.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from matinee.errors import ConfigError
from matinee.models.shift import TemporalModule, frames_seen, resnet_stages

PLACES = ((1, (0, 2)), (2, (0, 2, 4)))
"""Stage and blocks, from 0: five blocks in all, for deeper ResNets the same ones."""


class NonLocal(TemporalModule):
    """x + norm(out(softmax(θ(x) φ(x)ᵀ) g(x))), φ and g sub-sampled to half height and width.

    The norm's scale starts at 0, so the block starts as the identity. The embeddings are 1×1
    convolutions, on [B·T, C, H, W] the same as 1×1×1 ones on [B, C, T, H, W].
    """

    def __init__(self, channels: int, frames: int) -> None:
        super().__init__(frames)
        inner = channels // 2
        self.theta = nn.Conv2d(channels, inner, 1)
        self.phi = nn.Conv2d(channels, inner, 1)
        self.g = nn.Conv2d(channels, inner, 1)
        self.out = nn.Conv2d(inner, channels, 1)
        self.norm = nn.BatchNorm2d(channels)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[B·T, C, H, W] → the same shape.

        Raises:
            ConfigError: H or W is 1, so that nothing would be left to attend to.
        """
        height, width = x.shape[2:]
        if min(height, width) < 2:
            raise ConfigError(
                f"features of {height}×{width} at a non-local block, which halves them: "
                "give larger frames, or leave the non-local blocks out"
            )
        queries = self._tokens(self.theta(x))
        keys = self._tokens(F.max_pool2d(self.phi(x), 2))
        values = self._tokens(F.max_pool2d(self.g(x), 2))
        # scale=1: the paper's embedded Gaussian divides by nothing
        mixed = F.scaled_dot_product_attention(queries, keys, values, scale=1.0)  # [B, 1, N, D]
        places = mixed.reshape(-1, height, width, mixed.shape[-1]).permute(0, 3, 1, 2)
        new: Tensor = self.norm(self.out(places))
        return x + new

    def _tokens(self, x: Tensor) -> Tensor:
        """[B·T, D, h, w] → [B, 1, T·h·w, D]: one head."""
        clips = x.view(-1, self.frames, *x.shape[1:]).permute(0, 1, 3, 4, 2)  # [B, T, h, w, D]
        return clips.flatten(1, 3).unsqueeze(1)


class BlockWithNonLocal(nn.Module):
    """A residual block and the non-local block after it."""

    def __init__(self, block: nn.Module, nl: NonLocal) -> None:
        super().__init__()
        self.block, self.nl = block, nl

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.nl(self.block(x))
        return out


def add_non_local(model: nn.Module, frames: int) -> list[str]:
    """Put non-local blocks into stages 2 and 3 of a timm ResNet, changing `model`.

    They follow blocks 0 and 2 of the second stage and 0, 2 and 4 of the third (as many of them as
    the network has). Keys: `layer2.0.conv1.weight` becomes `layer2.0.block.conv1.weight`, and
    `layer2.0.nl.theta.weight` is new. Pooling and shift come first: Note [Temporal shift].

    Args:
        model: the network.
        frames: T at its input.

    Returns:
        Names of the blocks that were wrapped.

    Raises:
        ConfigError: not a ResNet.
        ValueError: non-local blocks are there already.
    """
    stages = resnet_stages(model, "the placement of non-local blocks")
    if any(isinstance(module, NonLocal) for module in model.modules()):
        raise ValueError("the network has non-local blocks already")
    info: list[dict[str, Any]] = model.feature_info  # type: ignore[assignment]
    channels = {entry["module"]: entry["num_chs"] for entry in info}
    seen = frames_seen(model, frames)
    wrapped = []
    for stage, places in PLACES:
        for place in places:
            if place >= len(stages[stage]):
                continue
            name, block = f"layer{stage + 1}.{place}", stages[stage][place]
            nl = NonLocal(channels[f"layer{stage + 1}"], seen[name])
            nl.to(next(block.parameters()))  # its device and type
            model.set_submodule(name, BlockWithNonLocal(block, nl))
            wrapped.append(name)
    return wrapped
