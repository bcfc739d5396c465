"""Random erasing: boxes of normalised clips, the same in all frames."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from matinee.data.augment.plan import AugmentPlan, Part


def erase(video_BCTHW: Tensor, plans: Sequence[AugmentPlan]) -> None:
    """Blank the planned boxes, in place: with 0, the mean colour, or with standard normal noise,
    new in each frame.

    The host knows the boxes, so only their pixels are touched: for a quarter of the clips this is a
    hundredth of what a mask over the batch moves. Noise follows from the plan's seed and the kind
    of device.

    Source: Random Erasing, arXiv 1708.04896, §3.2.
    """
    for video_CTHW, plan in zip(video_BCTHW, plans, strict=True):
        random = None
        if plan.noise is not None and plan.erase:
            random = torch.Generator(video_CTHW.device).manual_seed(plan.noise)
        for part in plan.erase:
            top, bottom, left, right = box_in_pixels(part, *video_CTHW.shape[-2:])
            box = video_CTHW[:, :, top:bottom, left:right]
            if random is None:
                box.zero_()
            else:
                box.copy_(torch.randn(box.shape, generator=random, device=box.device))


def box_in_pixels(part: Part, height: int, width: int) -> tuple[int, int, int, int]:
    """Top, bottom, left, right."""
    top, bottom = (round(edge * height) for edge in part[:2])
    left, right = (round(edge * width) for edge in part[2:])
    return top, bottom, left, right
