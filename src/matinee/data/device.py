"""From I420 bytes to normalised RGB on the device; flip and colour changes in the same pass."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from matinee.data.augment.blocks import blocks
from matinee.data.augment.tones import to_levels

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def color_change(factors: tuple[float, float, float]) -> NDArray[np.float64]:
    """Affine map [3, 4] on RGB (0–1): brightness, then contrast about 0.5, then saturation."""
    brightness, contrast, saturation = factors
    luma = np.array([0.299, 0.587, 0.114])
    saturate = saturation * np.eye(3) + (1 - saturation) * np.ones((3, 1)) * luma
    linear = saturate * (brightness * contrast)
    return np.concatenate([linear, (saturate @ np.full(3, 0.5 * (1 - contrast)))[:, None]], axis=1)


def after(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """The affine map [3, 4] that applies `first`, then `second`."""
    linear = second[:, :3] @ first[:, :3]
    offset = second[:, :3] @ first[:, 3] + second[:, 3]
    return np.concatenate([linear, offset[:, None]], axis=1)


def to_video(
    i420: Tensor,
    affine: Tensor,
    flip: Tensor | None,
    *,
    size: tuple[int, int],
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    std: tuple[float, float, float] = IMAGENET_STD,
) -> Tensor:
    """Convert, change colours, normalise and mirror a batch, in one pass.

    Args:
        i420: uint8 [B, T, H * W * 3 / 2], planar 4:2:0.
        affine: float32 [B, 3, 4], stored YCbCr to RGB in 0–1, colour changes included; clips with
            any matrix and range side by side.
        flip: bool [B], clips to mirror; None for none.
        size: (H, W).

    Returns:
        float32 [B, 3, T, H, W], `(rgb - mean) / std` with RGB clamped to 0–1. Chroma is repeated
        over its 2×2 pixels.
    """
    center, scale = (channels(values, i420.device) for values in (mean, std))
    # The map goes straight to normalised values, and what RGB is clamped to goes with it.
    offset = (affine[:, :, 3:] - center.view(1, 3, 1)) / scale.view(1, 3, 1)
    affine = torch.cat([affine[:, :, :3] / scale.view(1, 3, 1), offset], dim=2)
    bounds = -center / scale, (1 - center) / scale
    (clips, length), (height, width) = i420.shape[:2], size
    video = empty((clips, 3, length, height, width), torch.float32, i420.device)
    for rows, frames in blocks(clips, length, height * width, i420.device):
        turned = None if flip is None else flip[rows]
        _convert(i420[rows, frames], affine[rows], turned, bounds, video[rows, :, frames])
    return video


def to_rgb(i420: Tensor, affine: Tensor, flip: Tensor | None, *, size: tuple[int, int]) -> Tensor:
    """As `to_video`, but uint8 RGB, rounded and not normalised."""
    affine = affine * 255
    bounds = torch.zeros(1, device=i420.device), torch.full((1,), 255.0, device=i420.device)
    (clips, length), (height, width) = i420.shape[:2], size
    video = empty((clips, 3, length, height, width), torch.uint8, i420.device)
    for rows, frames in blocks(clips, length, height * width, i420.device):
        part = video[rows, :, frames]
        exact = torch.empty(part.shape, device=i420.device)
        turned = None if flip is None else flip[rows]
        _convert(i420[rows, frames], affine[rows], turned, bounds, exact)
        part.copy_(to_levels(exact.add_(0.5)))
    return video


def normalise(
    rgb_BCTHW: Tensor, mean: tuple[float, float, float], std: tuple[float, float, float]
) -> Tensor:
    """uint8 RGB to float32, `(rgb / 255 - mean) / std`."""
    center, scale = (channels(values, rgb_BCTHW.device) for values in (mean, std))
    video = empty(tuple(rgb_BCTHW.shape), torch.float32, rgb_BCTHW.device)
    (clips, _, length, height, width), step = rgb_BCTHW.shape, 1 / (255 * scale)
    for rows, frames in blocks(clips, length, height * width, rgb_BCTHW.device):
        part = video[rows, :, frames]
        torch.mul(rgb_BCTHW[rows, :, frames].to(torch.float32), step, out=part)
        part.sub_(center / scale)
    return video


def _convert(
    i420: Tensor,
    affine: Tensor,
    flip: Tensor | None,
    bounds: tuple[Tensor, Tensor],
    out: Tensor,
) -> None:
    """Affine maps of YCbCr, kept within `bounds`, into `out`, float32 [B, 3, T, H, W].

    As few passes over wide numbers as can be: clips are mirrored and chroma is doubled as bytes.
    """
    clips, _, frames, height, width = out.shape
    luma = i420[..., : height * width].view(clips, 1, frames, height, width)
    chroma = i420[..., height * width :].view(clips, frames, 2, height // 2, width // 2)
    if flip is not None:
        mask = flip.to(torch.uint8).neg().view(-1, 1, 1, 1, 1)  # 255 where mirrored
        luma = luma ^ ((luma ^ luma.flip(-1)) & mask)
        chroma = chroma ^ ((chroma ^ chroma.flip(-1)) & mask)
    # A byte times 257 is that byte twice in a row.
    chroma = chroma.to(torch.int16).mul_(257).view(torch.uint8).permute(0, 2, 1, 3, 4)
    chroma = chroma.to(torch.float32, memory_format=torch.contiguous_format)  # [B, 2, T, H/2, W]
    weight = affine[:, :, :, None, None, None]  # [B, 3, 4, 1, 1, 1]
    tint = weight[:, :, 1] * chroma[:, :1]
    tint += weight[:, :, 2] * chroma[:, 1:]
    tint += weight[:, :, 3]
    torch.mul(luma.to(torch.float32), weight[:, :, 0], out=out)
    out.view(clips, 3, frames, height // 2, 2, width).add_(tint[:, :, :, :, None])
    torch.maximum(out, bounds[0], out=out)
    torch.minimum(out, bounds[1], out=out)


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for a batch.

    On a CPU it comes from numpy, which asks the system for large pages: a batch touches new memory
    each time, and in small pages that takes longer than the conversion.
    """
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(shape, np.uint8 if dtype == torch.uint8 else np.float32))


@lru_cache(maxsize=16)
def channels(values: tuple[float, float, float], device: torch.device) -> Tensor:
    """One value a channel, [1, 3, 1, 1, 1]; kept, since a GPU is waited for when it gets them."""
    with torch.inference_mode(False):
        return torch.tensor(values, device=device).view(1, 3, 1, 1, 1)
