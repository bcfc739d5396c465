"""Mixup and CutMix of clips on the device: the same partner and box in all frames."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from matinee.data.random import generator


@dataclass(frozen=True)
class MixPlan:
    """Clip i is mixed with clip `partner[i]`, itself keeping the weight `keep`.

    `box` (top, bottom, left, right, in parts of the picture) is pasted from the partner; None
    blends the whole clip.
    """

    partner: tuple[int, ...]
    keep: float
    box: tuple[float, float, float, float] | None


def plan_mix(seed: int, clips: int, *, mixup: float, cutmix: float) -> MixPlan | None:
    """How a batch of clips is mixed; None without either.

    Args:
        seed: of this batch.
        mixup, cutmix: a of Beta(a, a), 0 for none; with both, one of them at even odds.

    Source: Mixup, arXiv 1710.09412, §2; CutMix, arXiv 1905.04899, §3.1.
    """
    if mixup == 0 and cutmix == 0:
        return None
    rng = generator(seed, 0, clips, "mix")
    cut = bool(rng.random() < 0.5) if mixup and cutmix else cutmix > 0
    partner = tuple(rng.permutation(clips).tolist())
    alpha = cutmix if cut else mixup
    keep = float(rng.beta(alpha, alpha))
    if not cut:
        return MixPlan(partner, keep, None)
    side = np.sqrt(1 - keep)
    center_y, center_x = rng.random(2)
    top, bottom = np.clip([center_y - side / 2, center_y + side / 2], 0, 1).tolist()
    left, right = np.clip([center_x - side / 2, center_x + side / 2], 0, 1).tolist()
    return MixPlan(partner, keep, (top, bottom, left, right))


def mix(video_BCTHW: Tensor, plan: MixPlan, valid_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mix clips; one whose partner is invalid stays as it is.

    Returns:
        The clips [B, C, T, H, W], the partners' numbers int64 [B], and the weight that a clip's own
        label keeps, float32 [B]: for CutMix the part of pixels left.
    """
    device = video_BCTHW.device
    partner = torch.tensor(plan.partner, device=device)
    mixable = valid_B[partner]
    shape = (-1, 1, 1, 1, 1)
    other = torch.where(mixable.view(shape), video_BCTHW[partner], video_BCTHW)
    if plan.box is None:
        keep = plan.keep
        mixed = torch.lerp(other, video_BCTHW, keep)
    else:
        height, width = video_BCTHW.shape[-2:]
        top, bottom = (round(part * height) for part in plan.box[:2])
        left, right = (round(part * width) for part in plan.box[2:])
        mixed = video_BCTHW.clone()
        mixed[..., top:bottom, left:right] = other[..., top:bottom, left:right]
        keep = 1 - (bottom - top) * (right - left) / (height * width)
    kept = torch.where(mixable, keep, 1.0)
    return mixed, partner, kept.float()
