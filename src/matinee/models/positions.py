"""Position embeddings of patches: the fixed sine-cosine table, and learned ones at another size."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from matinee.errors import ConfigError


def sine_table(tokens: int, width: int) -> Tensor:
    """Float32 [1, N, D]: dimensions 2i and 2i + 1 are sine and cosine of n / 10000^(2i / D).

    VideoMAE counts the tokens of a clip through, frame after frame: `tokens` is T'·N there.

    Source: arXiv 1706.03762, §3.5.
    """
    place = torch.arange(tokens, dtype=torch.float64)[:, None]
    pair = torch.arange(width, dtype=torch.float64).div(2, rounding_mode="floor")
    angle = place / 10000.0 ** (2 * pair / width)
    even = torch.arange(width) % 2 == 0
    return torch.where(even, angle.sin(), angle.cos()).float()[None]


def interpolate_space(
    embed_1ND: Tensor, grid: tuple[int, int], prefix: int, old: tuple[int, int] | None = None
) -> Tensor:
    """A learned embedding of a grid of patches, at another grid: bicubic, antialiased.

    Args:
        grid: rows and columns to come to.
        prefix: rows of the embedding, the first ones, that belong to class and register tokens and
            stay as they are.
        old: rows and columns of the embedding's own grid; None: a square.

    Returns:
        [1, prefix + rows·columns, D].

    Raises:
        ConfigError: the patches of `embed_1ND` are no square, and no grid was given.
    """
    head, patches = embed_1ND[:, :prefix], embed_1ND[:, prefix:]
    side = math.isqrt(patches.shape[1])
    old = old or (side, side)
    if math.prod(old) != patches.shape[1]:
        raise ConfigError(
            f"a position embedding of {embed_1ND.shape[1]} tokens, {prefix} of them class tokens, "
            f"is no square of patches and cannot be brought to {grid[0]}×{grid[1]}"
        )
    if old == grid:
        return embed_1ND
    picture = patches.transpose(1, 2).reshape(1, -1, *old)  # [1, D, rows, columns]
    scaled = F.interpolate(picture, size=grid, mode="bicubic", antialias=True, align_corners=False)
    return torch.cat([head, scaled.flatten(2).transpose(1, 2)], dim=1)


def interpolate_time(embed_1TD: Tensor, frames: int) -> Tensor:
    """A temporal embedding for another number of tubelets: linear between their middles.

    Returns:
        [1, frames, D]; the ends are held, not extrapolated.
    """
    if embed_1TD.shape[1] == frames:
        return embed_1TD
    rows = embed_1TD.transpose(1, 2)  # [1, D, T']
    return F.interpolate(rows, size=frames, mode="linear", align_corners=False).transpose(1, 2)
