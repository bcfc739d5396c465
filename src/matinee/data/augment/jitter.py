"""Hue and blur of 8-bit RGB, [R, 3, T, H, W]."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from matinee.data.augment.tones import to_levels


def turn_hue(video: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue (of HSV) of uint8 RGB by parts of the circle, float32 [R]; value and saturation
    stay.
    """
    rgb = video.to(torch.float32)
    red, green, blue = rgb.unbind(1)  # [R, T, H, W]
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    scale = chroma.clamp(min=1).reciprocal_()  # grey has no hue: any will do
    is_red = (red == value).to(torch.float32)
    is_green = (green == value).to(torch.float32).mul_(1 - is_red)
    # In sixths of the circle, from the channel that leads.
    sixth = ((green - blue) * is_red).add_((blue - red).mul_(is_green))
    sixth.add_((red - green).mul_(1 - is_red - is_green)).mul_(scale)
    sixth.add_(4 - 4 * is_red).sub_(2 * is_green)
    sixth.add_(turn.view(-1, 1, 1, 1) * 6)
    turned = []
    for start in (5, 3, 1):
        # min(place, 4 - place), within 0 … 1
        part = (sixth + start).remainder_(6).sub_(2).abs_().neg_().add_(2).clamp_(0, 1)
        turned.append(to_levels(part.mul_(-chroma).add_(value).add_(0.5)))
    return torch.stack(turned, dim=1)


def blur_weights(sigma: float, radius: int) -> list[float]:
    """A Gaussian's weights at 0, 1 … `radius` pixels, 0 beyond 3 sigma; the whole sums to 1."""
    reach = blur_radius(sigma)
    half = [math.exp(-0.5 * (i / sigma) ** 2) if i <= reach else 0.0 for i in range(radius + 1)]
    total = half[0] + 2 * sum(half[1:])
    return [weight / total for weight in half]


def blur_radius(sigma: float) -> int:
    """Pixels on each side that count."""
    return max(1, math.ceil(3 * sigma))


def blur(video: Tensor, weights: Tensor) -> Tensor:
    """Blur uint8 RGB along both axes by symmetric weights, float32 [R, radius + 1], from the middle
    outwards; the picture is mirrored at its border.

    Sums of shifted pictures: a CPU convolves one channel ten times as slowly.
    """
    clips, _, frames, height, width = video.shape
    radius = weights.shape[1] - 1
    planes = video.view(clips, 3 * frames, height, width).to(torch.float32)
    weight = weights.view(clips, -1, 1, 1, 1).unbind(1)  # each [R, 1, 1, 1]
    for axis in (2, 3):
        pad = (0, 0, radius, radius) if axis == 2 else (radius, radius, 0, 0)
        wide, length = F.pad(planes, pad, "reflect"), planes.shape[axis]
        total = wide.narrow(axis, radius, length) * weight[0]
        pair = torch.empty_like(planes)
        for i in range(1, radius + 1):
            before = wide.narrow(axis, radius - i, length)
            behind = wide.narrow(axis, radius + i, length)
            total += torch.add(before, behind, out=pair).mul_(weight[i])
        planes = total
    return to_levels(planes.add_(0.5)).view(video.shape)
