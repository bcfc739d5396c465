"""Where a clip is cropped. Pure functions; a box is in pixels of the stored frame, even-sided."""

from __future__ import annotations

import math

import numpy as np

from matinee.media.decode import Box

# Multi-scale crops: sides as parts of the short side, Very Deep Two-Stream ConvNets,
# arXiv 1507.02159, §3.2, as used by TSN and TSM.
_SCALES = (1.0, 0.875, 0.75, 0.66)


def even_box(x: float, y: float, width: float, height: float, picture: tuple[int, int]) -> Box:
    """The box with even corners and sides nearest to the given one, inside `picture` (w, h)."""
    full_w, full_h = picture[0] // 2 * 2, picture[1] // 2 * 2
    w = min(max(2, 2 * round(width / 2)), full_w)
    h = min(max(2, 2 * round(height / 2)), full_h)
    return Box(
        min(max(0, 2 * round(x / 2)), full_w - w), min(max(0, 2 * round(y / 2)), full_h - h), w, h
    )


def center_box(picture: tuple[int, int], scale: float, *, place: float = 0.5) -> Box:
    """A square of `scale` times the short side; `place` in [0, 1] moves it along the long side."""
    width, height = picture
    side = scale * min(width, height)
    x = (width - side) * (place if width >= height else 0.5)
    y = (height - side) * (place if height > width else 0.5)
    return even_box(x, y, side, side, picture)


def random_resized_box(
    picture: tuple[int, int],
    rng: np.random.Generator,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Box:
    """A box of random area (`scale`: parts of the picture) and aspect (`ratio`: width/height).

    Source: Going Deeper with Convolutions, arXiv 1409.4842, §6; ten tries, then the centre.
    """
    width, height = picture
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        # Scaled draws: `rng.uniform` gives the same numbers, and takes four times as long.
        area = width * height * (scale[0] + (scale[1] - scale[0]) * rng.random())
        aspect = math.exp(low + (high - low) * rng.random())
        w, h = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if w <= width and h <= height:
            x, y = (width - w) * rng.random(), (height - h) * rng.random()
            return even_box(x, y, w, h, picture)
    aspect = min(max(width / height, ratio[0]), ratio[1])
    w, h = min(width, height * aspect), min(height, width / aspect)
    return even_box((width - w) / 2, (height - h) / 2, w, h, picture)


def multi_scale_box(picture: tuple[int, int], rng: np.random.Generator) -> Box:
    """Width and height drawn from four scales at most one step apart, at one of 13 places.

    Source: Very Deep Two-Stream ConvNets, arXiv 1507.02159, §3.2; TSN, arXiv 1608.00859, §3.3.
    """
    width, height = picture
    short = min(width, height)
    pairs = [(a, b) for a in range(4) for b in range(4) if abs(a - b) <= 1]
    a, b = pairs[rng.integers(len(pairs))]
    w, h = short * _SCALES[a], short * _SCALES[b]
    steps = [(0, 0), (4, 0), (0, 4), (4, 4), (2, 2), (0, 2), (4, 2), (2, 0), (2, 4),
             (1, 1), (3, 1), (1, 3), (3, 3)]  # fmt: skip
    col, row = steps[rng.integers(len(steps))]
    return even_box((width - w) * col / 4, (height - h) * row / 4, w, h, picture)
