"""Operations on 8-bit levels that move no pixel: tones, colours, sharpness.

Every function takes uint8 RGB [R, 3, T, H, W] and the value of each clip, float32 [R] (see
`Operation`), and gives new uint8 RGB. Levels are cut, not rounded, as Pillow does. Sums over pixels
are of whole numbers, so the clips beside it cannot change a clip.

Comparisons and selections of bytes are slow on CPUs, bit operations fast: hence the masks.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


def to_levels(video: Tensor) -> Tensor:
    """Floating-point 0 … 255 to uint8, cut to whole levels; `video` is changed.

    By way of int16, which CPUs convert three times as fast.
    """
    return video.clamp_(0, 255).to(torch.int16).to(torch.uint8)


def from_parts(video: Tensor) -> Tensor:
    """RGB in 0–1, in floating point of any precision, to the nearest uint8."""
    return to_levels((video.to(torch.float32) * 255).add_(0.5))


def invert(video: Tensor, _: Tensor) -> Tensor:
    """255 minus the level."""
    return video.bitwise_not()


def posterize(video: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest bits of each level, 0 … 8."""
    mask = (256 - torch.exp2(8 - bits)).round().to(torch.uint8)
    return video & _each(mask)


def solarize(video: Tensor, threshold: Tensor) -> Tensor:
    """Invert levels of `threshold` and more."""
    above = video.to(torch.int16) >= _each(threshold.to(torch.int16))
    return video ^ above.view(torch.uint8).neg()


def solarize_add(video: Tensor, amount: Tensor) -> Tensor:
    """Add to levels below 128; at most 128."""
    below = (video >> 7) - 1  # 255 where the highest bit is not set
    return video + (below & _each(amount.to(torch.uint8)))


def brightness(video: Tensor, factor: Tensor) -> Tensor:
    """Multiply."""
    return to_levels(video.to(torch.float32).mul_(_each(factor)))


def contrast(video: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance from the mean luma of the frame."""
    sums = video.sum((-2, -1), keepdim=True).to(torch.float32)  # [R, 3, T, 1, 1]
    mean = _luma(sums / (video.shape[-2] * video.shape[-1])).add_(0.5).floor_()
    return _blend(mean, video, _each(factor))


def color(video: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance from the grey of the same luma."""
    return _blend(_luma(video.to(torch.float32)).add_(0.5).floor_(), video, _each(factor))


def autocontrast(video: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel of each frame to 0 … 255."""
    low = video.amin((-2, -1), keepdim=True).to(torch.float32)
    high = video.amax((-2, -1), keepdim=True).to(torch.float32)
    flat = high == low
    scale = torch.where(flat, 1.0, 255 / (high - low))
    offset = torch.where(flat, 0.0, -low * scale)
    return to_levels(video.to(torch.float32).mul_(scale).add_(offset))


def equalize(video: Tensor, _: Tensor) -> Tensor:
    """Spread the levels of each channel of each frame evenly."""
    pixels = video.shape[-2] * video.shape[-1]
    place = video.reshape(-1, pixels).to(torch.int64)  # [P, H * W]
    counts = torch.zeros(len(place), 256, dtype=torch.int32, device=video.device)
    one = torch.ones(1, 1, dtype=torch.int32, device=video.device)
    counts.scatter_add_(1, place, one.expand_as(place))
    level = torch.arange(256, device=video.device)
    highest = ((counts > 0) * level).amax(1, keepdim=True)
    step = (pixels - counts.gather(1, highest)) // 255
    below = counts.cumsum(1) - counts
    table = (below + step // 2) // step.clamp(min=1)
    table = torch.where(step == 0, level, table).clamp_(max=255).to(torch.uint8)
    return table.gather(1, place).view(video.shape)


def sharpness(video: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance from a picture smoothed by 3×3 (1, with 5 in the middle; border kept)."""
    width, sharpened = video.shape[-1], video.clone()
    # All pixels of a clip in one line, so that every shift is one run of memory. Neighbours of
    # pixels at the border are wrong then; those keep their level.
    levels = video.flatten(1).to(torch.int16)  # [R, N]
    rows = levels[:, : -2 * width] + levels[:, width:-width]
    rows += levels[:, 2 * width :]
    total = rows[:, :-2] + rows[:, 1:-1]
    total += rows[:, 2:]
    inner = levels[:, width + 1 : -width - 1]
    smooth = total.add_(4 * inner).to(torch.float32).mul_(1 / 13).add_(0.5).floor_()
    sharpened.flatten(1)[:, width + 1 : -width - 1] = _blend(smooth, inner, factor.view(-1, 1))
    for edge in (0, -1):
        sharpened[..., edge, :] = video[..., edge, :]
        sharpened[..., edge] = video[..., edge]
    return sharpened


def _each(value_R: Tensor) -> Tensor:
    return value_R.view(-1, 1, 1, 1, 1)


def _luma(rgb: Tensor) -> Tensor:
    red, green, blue = (weight * rgb[:, i : i + 1] for i, weight in enumerate(_LUMA))
    return red.add_(green).add_(blue)


def _blend(first: Tensor, second: Tensor, factor: Tensor) -> Tensor:
    """`first + factor * (second - first)`, in levels."""
    return to_levels(second.to(torch.float32).sub_(first).mul_(factor).add_(first))
