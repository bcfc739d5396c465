"""From I420 bytes to normalised RGB on the device; flip and colour changes in the same pass."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# ITU-T H.273 MatrixCoefficients 5/6 and 1: (Kr, Kb).
_LUMA = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def ycbcr_to_rgb(matrix: str, full_range: bool) -> NDArray[np.float64]:
    """Affine map [3, 4] from stored YCbCr (0–255) to RGB (0–1).

    Source: ITU-R BT.601-7 §2.5, BT.709-6 §3; quantisation ITU-T H.273 §8.3.
    """
    kr, kb = _LUMA[matrix]
    kg = 1 - kr - kb
    rgb_of_ycc = np.array(
        [
            [1, 0, 2 * (1 - kr)],
            [1, -2 * kb * (1 - kb) / kg, -2 * kr * (1 - kr) / kg],
            [1, 2 * (1 - kb), 0],
        ]
    )
    luma, chroma, black = (255.0, 255.0, 0.0) if full_range else (219.0, 224.0, 16.0)
    scale = np.array([1 / luma, 1 / chroma, 1 / chroma])
    offset = np.array([-black / luma, -128 / chroma, -128 / chroma])
    return np.concatenate([rgb_of_ycc * scale, (rgb_of_ycc @ offset)[:, None]], axis=1)


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
    """Convert, change colours, normalise and mirror a batch.

    Args:
        i420: uint8 [B, T, H * W * 3 / 2], planar 4:2:0.
        affine: float32 [B, 3, 4], stored YCbCr to RGB in 0–1, colour changes included.
        flip: bool [B], clips to mirror; None for none.
        size: (H, W).

    Returns:
        float32 [B, 3, T, H, W], `(rgb - mean) / std` with RGB clamped to 0–1. Chroma is repeated
        over its 2×2 pixels.
    """
    (height, width), (clips, frames) = size, i420.shape[:2]
    half = (height // 2, width // 2)
    luma = i420[..., : height * width].view(clips, 1, frames, height, width)
    chroma = i420[..., height * width :].view(clips, frames, 2, *half)
    chroma = chroma.permute(0, 2, 1, 3, 4).to(torch.float32)  # [B, 2, T, H/2, W/2]
    weight = affine[:, :, :, None, None, None]  # [B, 3, 4, 1, 1, 1]
    tint = weight[:, :, 3] + weight[:, :, 1] * chroma[:, :1] + weight[:, :, 2] * chroma[:, 1:]
    video = weight[:, :, 0] * luma.to(torch.float32)  # [B, 3, T, H, W]
    pairs = video.view(clips, 3, frames, half[0], 2, half[1], 2)
    pairs += tint[:, :, :, :, None, :, None]
    video.clamp_(0, 1)
    video.sub_(channels(mean, video.device))
    video.div_(channels(std, video.device))
    if flip is not None:
        video = torch.where(flip.view(-1, 1, 1, 1, 1), video.flip(-1), video)
    return video


@lru_cache(maxsize=16)
def channels(values: tuple[float, float, float], device: torch.device) -> Tensor:
    """One value a channel, [1, 3, 1, 1, 1]; kept, since a GPU is waited for when it gets them."""
    with torch.inference_mode(False):
        return torch.tensor(values, device=device).view(1, 3, 1, 1, 1)
