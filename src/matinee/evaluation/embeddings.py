"""Vectors of clips, and of texts from a contrastive task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from matinee.data.batch import Batch
from matinee.data.epochs import EpochLoader
from matinee.evaluation.means import Autocast, mean_over_views, sample_names
from matinee.evaluation.ranks import add_up, fresh, gather_rows, share
from matinee.tasks.contrastive import ContrastiveTask


@dataclass(frozen=True)
class ClipVectors:
    """index: int64 [N], rows of the pack. vectors: float32 [N, D], means over views.

    skipped: ids of samples none of whose views could be read.
    """

    index: NDArray[np.int64]
    samples: tuple[str, ...]
    vectors: NDArray[np.float32]
    skipped: tuple[str, ...]


def embed_clips(
    embed: Callable[[Batch], Tensor],
    loader: EpochLoader,
    autocast: Autocast = nullcontext,
    *,
    on_batch: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> ClipVectors | None:
    """A vector for each sample of an evaluation loader: the mean over its views, on every rank.

    Args:
        embed: vectors [B, D] of a batch; the network is in evaluation mode already.
        on_batch, should_stop: as `mean_over_views` takes them.

    Raises:
        MatineeError: not one sample could be read.
    """
    means = mean_over_views(embed, loader, autocast, on_batch=on_batch, should_stop=should_stop)
    if means is None:
        return None
    read = means.views > 0
    return ClipVectors(
        index=means.index[read],
        samples=sample_names(loader, means.index[read]),
        vectors=means.values[read].astype(np.float32),
        skipped=sample_names(loader, means.index[~read]),
    )


@torch.no_grad()
def embed_texts(
    task: ContrastiveTask,
    texts: Sequence[str],
    autocast: Autocast = nullcontext,
    *,
    batch_size: int = 256,
) -> tuple[NDArray[np.float32], int]:
    """Unit vectors float32 [T, D] of texts, and how many were cut to the context.

    On several ranks a collective, with the same texts on each: see Note [Shares].
    """
    device = next(task.model.parameters()).device
    places, once = share(len(texts)), fresh(len(texts))
    rows, cut = [], 0
    for start in range(0, len(places), batch_size):
        own = [texts[place] for place in places[start : start + batch_size]]
        tokens = task.model.text.tokenize(own)
        counted = own[: max(0, once - start)]
        cut += tokens.cut if len(counted) == len(own) else task.model.text.count_cut(counted)
        with autocast():
            rows.append(task.model.embed_text(tokens.ids.to(device)).float().cpu().numpy())
    _, vectors = gather_rows(places, np.concatenate(rows), np.arange(len(texts)))
    return vectors, add_up(cut)
