"""Operations that move pixels: all are affine, and one resampling does them all."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from matinee.data.augment.plan import Operation
from matinee.data.augment.tones import to_levels

GRAY = 128
"""What lies outside the picture."""


def matrix_of(operation: Operation, size: tuple[int, int]) -> tuple[float, ...] | None:
    """(a, b, c, d, e, f): the place x, y of the result shows a x + b y + c, d x + e y + f.

    In pixels, from the top left corner of the picture of `size` (height, width). None: it moves no
    pixel. Rotation is about the middle, shear about the corner.
    """
    (height, width), value = size, operation.value
    match operation.name:
        case "rotate":
            angle = math.radians(value)
            cos, sin = math.cos(angle), math.sin(angle)
            x, y = width / 2, height / 2
            return cos, -sin, x - x * cos + y * sin, sin, cos, y - x * sin - y * cos
        case "shear-x":
            return 1, value, 0, 0, 1, 0
        case "shear-y":
            return 1, 0, 0, value, 1, 0
        case "translate-x":
            return 1, 0, value * width, 0, 1, 0
        case "translate-y":
            return 1, 0, 0, 0, 1, value * height
        case _:
            return None


def warp(video: Tensor, matrix: Tensor) -> Tensor:
    """Resample uint8 [R, 3, T, H, W] bilinearly by affine maps, float32 [R, 6] (see `matrix_of`).

    A place whose middle lies outside the picture is grey; near the border, pixels of the border
    stand for those beyond it.
    """
    clips, _, frames, height, width = video.shape
    a, b, c, d, e, f = matrix.view(-1, 6, 1, 1).unbind(1)  # [R, 1, 1]
    x = torch.arange(width, device=video.device) + 0.5
    y = torch.arange(height, device=video.device)[:, None] + 0.5
    source_x, source_y = a * x + b * y + c, d * x + e * y + f  # [R, H, W]
    inside = (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)
    grid = torch.empty(clips, height, width, 2, device=video.device)
    grid[..., 0] = source_x * (2 / width) - 1
    grid[..., 1] = source_y * (2 / height) - 1
    planes = video.view(clips, 3 * frames, height, width).to(torch.float32)
    moved = F.grid_sample(planes, grid, "bilinear", "border", align_corners=False)
    shown = inside[:, None].to(torch.float32)
    moved = moved.mul_(shown).add_(GRAY * (1 - shown)).add_(0.5)
    return to_levels(moved).view(video.shape)
