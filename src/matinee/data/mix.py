"""Mixup and CutMix of clips on the device: neighbours in pairs, the same box in all frames.

# Note [Mixing in pairs]
Clips 2i and 2i + 1 of a batch are mixed with each other, each pair by its own draw, which follows
from the seed of the pair's first clip. The order of clips is random anyway, so neighbours are as
random as partners drawn from the whole batch; and any split of a batch into even micro-batches
gives the same clips and targets. Several crops of one decoded clip would be poor partners, with the
same label and much the same picture: loaders let two decoded clips take turns in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from matinee.data.random import generator
from matinee.data.transfer import send
from matinee.errors import ConfigError


@dataclass(frozen=True)
class PairMix:
    """How two clips are mixed: each keeps the weight `keep` and takes the rest from the other.

    `box` (top, bottom, left, right, in parts of the picture) is pasted from the other; None blends
    the whole clip.
    """

    keep: float
    box: tuple[float, float, float, float] | None


def check_pairs(clips: int, *, crops: int = 1) -> None:
    """Refuse batches whose clips cannot be mixed in pairs.

    Args:
        crops: clips of each decoded one; only clips of different ones are mixed.

    Raises:
        ConfigError: `clips` is no multiple of twice `crops`.
    """
    if clips % (2 * crops):
        of = f" with {crops} crops of each" if crops > 1 else ""
        raise ConfigError(
            f"--task.mixup and --task.cutmix mix pairs of clips, and a batch of {clips}{of} has no "
            f"such pairs: choose --optim.batch-size, --optim.accumulate and the number of ranks so "
            f"that it is a multiple of {2 * crops}"
        )


def take_turns(items: NDArray[np.int64], crops: int) -> NDArray[np.int64]:
    """Items in runs of `crops`, a0 a1 … b0 b1 …, so that two runs alternate: a0 b0 a1 b1 …

    The last of an odd number of runs stays as it is.
    """
    runs = items.reshape(-1, crops)
    even = len(runs) // 2 * 2
    pairs = runs[:even].reshape(-1, 2, crops).transpose(0, 2, 1)
    return np.concatenate([pairs.reshape(-1), runs[even:].reshape(-1)])


def plan_mix(
    seeds: Sequence[int] | NDArray[np.int64],
    *,
    mixup: float,
    cutmix: float,
    probability: float = 1.0,
    cutmix_share: float = 0.5,
) -> tuple[PairMix, ...]:
    """How each pair of a batch is mixed.

    Args:
        seeds: of the clips.
        mixup, cutmix: a of Beta(a, a), 0 for none.
        probability: that a pair is mixed at all.
        cutmix_share: with both, how often CutMix is the one.

    Raises:
        ConfigError: an odd number of clips.
    Source: Mixup, arXiv 1710.09412, §2; CutMix, arXiv 1905.04899, §3.1.
    """
    check_pairs(len(seeds))
    return tuple(
        _plan_pair(int(seed), mixup, cutmix, probability, cutmix_share) for seed in seeds[::2]
    )


def _plan_pair(
    seed: int, mixup: float, cutmix: float, probability: float, cutmix_share: float
) -> PairMix:
    rng = generator(seed, 0, 0, "mix")
    if probability < 1 and rng.random() >= probability:
        return PairMix(1.0, None)
    cut = bool(rng.random() < cutmix_share) if mixup and cutmix else cutmix > 0
    alpha = cutmix if cut else mixup
    keep = float(rng.beta(alpha, alpha))
    if not cut:
        return PairMix(keep, None)
    side = np.sqrt(1 - keep)
    center_y, center_x = rng.random(2)
    top, bottom = np.clip([center_y - side / 2, center_y + side / 2], 0, 1).tolist()
    left, right = np.clip([center_x - side / 2, center_x + side / 2], 0, 1).tolist()
    return PairMix(keep, (top, bottom, left, right))


def mix(video_BCTHW: Tensor, pairs: Sequence[PairMix], valid_B: Tensor) -> tuple[Tensor, Tensor]:
    """Mix the clips of each pair; a pair with an invalid clip stays as it is.

    Returns:
        The clips [B, C, T, H, W], and the weight that a clip's own label keeps, [B] of the clips'
        dtype: the part of its pixels that are its own.
    """
    height, width = video_BCTHW.shape[-2:]
    # All numbers of all pairs in one transfer, which nobody waits for.
    numbers = torch.tensor(
        [_in_pixels(pair, height, width) for pair in pairs], dtype=video_BCTHW.dtype
    )
    numbers = send(numbers, video_BCTHW.device)
    mixable = valid_B.view(-1, 2).all(dim=1)
    keep, blend = torch.where(mixable, numbers[:, :2].T, 1.0)
    top, bottom, left, right = numbers[:, 2:].T[..., None]
    y = torch.arange(height, device=video_BCTHW.device)
    x = torch.arange(width, device=video_BCTHW.device)
    rows, columns = (y >= top) & (y < bottom), (x >= left) & (x < right)  # [P, H], [P, W]
    pasted = rows[:, :, None] & columns[:, None, :] & mixable[:, None, None]
    own = torch.where(pasted, 0.0, blend[:, None, None])[:, None, None]  # [P, 1, 1, H, W]
    first, second = video_BCTHW[0::2], video_BCTHW[1::2]
    mixed = torch.empty_like(video_BCTHW)
    torch.lerp(second, first, own, out=mixed[0::2])
    torch.lerp(first, second, own, out=mixed[1::2])
    return mixed, keep.repeat_interleave(2)


def _in_pixels(pair: PairMix, height: int, width: int) -> tuple[float, ...]:
    """The label's weight, that of pixels outside the box, and the box (see `PairMix`) in pixels."""
    if pair.box is None:
        return (pair.keep, pair.keep, 0, 0, 0, 0)
    top, bottom = (round(part * height) for part in pair.box[:2])
    left, right = (round(part * width) for part in pair.box[2:])
    return (1 - (bottom - top) * (right - left) / (height * width), 1, top, bottom, left, right)


def swap_neighbours(rows: Tensor) -> Tensor:
    """Row 2i + 1 in the place of row 2i and the other way round."""
    return rows.view(-1, 2, *rows.shape[1:]).flip(1).flatten(0, 1)
