"""Losses of paired clips and texts, as pure functions of their unit vectors.

# Note [Contrastive losses]
Row i of `video_NE` and row i of `text_NE` are a pair. A loss comes as one value a clip, [N], 0 for
clips that are not `valid`: their sum over the number of valid clips is the published loss. Invalid
clips are neither anchors nor negatives. Two clips of a batch with the same caption are negatives of
each other, as in CLIP; the max-margin loss can be told otherwise by their relevancy.

`rows` keeps the clips of those rows alone, still against all N (open_clip's "local loss"): with
features gathered from all ranks, each rank then computes [N / ranks, N] similarities instead of
[N, N]. See Note [Gradients of gathered features] for what to divide by.

Similarities are computed in float32 at least, whatever autocast says: InfoNCE multiplies them by up
to 100.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ALL = slice(None)


def info_nce(
    video_NE: Tensor,
    text_NE: Tensor,
    scale: Tensor | float,
    valid_N: Tensor | None = None,
    *,
    rows: slice = ALL,
) -> Tensor:
    """Symmetric InfoNCE of each clip: mean of the cross-entropies clip → text and text → clip.

    Args:
        scale: 1 / temperature.

    Source: CLIP, arXiv 2103.00020, figure 3.
    """
    to_text, to_video, own_RN = _similarities(video_NE, text_NE, rows)
    valid_N = _all_valid(video_NE) if valid_N is None else valid_N
    # An anchor keeps its own column even if invalid, so that no row is without any.
    left_out = ~(valid_N | own_RN)
    targets = own_RN.int().argmax(dim=1)
    each = [
        F.cross_entropy((scale * s).masked_fill(left_out, -torch.inf), targets, reduction="none")
        for s in (to_text, to_video)
    ]
    return torch.where(valid_N[rows], (each[0] + each[1]) / 2, 0.0)


def max_margin(
    video_NE: Tensor,
    text_NE: Tensor,
    relevancy_NN: Tensor | None = None,
    valid_N: Tensor | None = None,
    *,
    margin: float = 0.2,
    rows: slice = ALL,
) -> Tensor:
    """Hinge of each clip: its own pair must beat every other pair of its text or video by a margin.

    The mean of max(0, margin - s_ii + s_ij) over all other texts j and all other videos j: LaViLa's
    and AVION's loss for EK-100 multi-instance retrieval.

    Args:
        relevancy_NN: of text j for clip i, in [0, 1] and 1 for pairs; scales the margin of a
            negative by 1 - relevancy. None: the whole margin for all.

    Source: LaViLa, arXiv 2212.04501; AVION, arXiv 2309.16669; margin by relevancy,
    arXiv 2204.13001, with the factor `margin` of arXiv 2406.12256.
    """
    to_text, to_video, own_RN = _similarities(video_NE, text_NE, rows)
    valid_N = _all_valid(video_NE) if valid_N is None else valid_N
    negatives = valid_N & ~own_RN
    total = torch.zeros_like(to_text[:, 0])
    for s, relevancy in ((to_text, relevancy_NN), (to_video, _transposed(relevancy_NN))):
        gap = margin if relevancy is None else margin * (1 - relevancy[rows])
        own = (s * own_RN).sum(dim=1, keepdim=True)
        total = total + (F.relu(gap - own + s) * negatives).sum(dim=1)
    count = 2 * (valid_N.sum() - 1).clamp(min=1)
    return torch.where(valid_N[rows], total / count, 0.0)


def _similarities(video_NE: Tensor, text_NE: Tensor, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Clips against texts and texts against clips [R, N], and where their own pair is."""
    dtype = torch.promote_types(video_NE.dtype, torch.float32)
    with torch.autocast(video_NE.device.type, enabled=False):
        video_NE, text_NE = video_NE.to(dtype), text_NE.to(dtype)
        to_text = video_NE[rows] @ text_NE.T
        to_video = text_NE[rows] @ video_NE.T
    number = torch.arange(len(video_NE), device=video_NE.device)
    return to_text, to_video, number[rows, None] == number


def _all_valid(video_NE: Tensor) -> Tensor:
    return torch.ones(len(video_NE), dtype=torch.bool, device=video_NE.device)


def _transposed(matrix: Tensor | None) -> Tensor | None:
    return None if matrix is None else matrix.T
