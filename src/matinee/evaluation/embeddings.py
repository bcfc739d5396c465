"""Unit vectors of clips and captions, from a contrastive task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from matinee.data.batch import Batch
from matinee.data.epochs import EpochLoader
from matinee.errors import ConfigError, MatineeError
from matinee.tasks.contrastive import ContrastiveTask

Autocast = Callable[[], AbstractContextManager[object]]


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
    embed: Callable[[Batch], torch.Tensor],
    loader: EpochLoader,
    autocast: Autocast = nullcontext,
    *,
    on_batch: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> ClipVectors | None:
    """A vector for each sample of an evaluation loader: the mean over its views.

    Args:
        embed: vectors [B, D] of a batch; the network is in evaluation mode already.
        on_batch: called with the number of clips done so far.
        should_stop: asked between batches; None is returned when it says yes.

    Raises:
        MatineeError: not one sample could be read.
    """
    if loader.views is None:
        raise ConfigError("evaluation needs a loader made with views=(temporal, spatial)")
    rows = loader.samples
    total: NDArray[np.float64] | None = None
    count, done = np.zeros(len(rows)), 0
    for batch in loader:
        if should_stop is not None and should_stop():
            return None
        with torch.no_grad(), autocast():
            values = embed(batch).double().cpu().numpy()
        if total is None:
            total = np.zeros((len(rows), values.shape[1]))
        places = np.searchsorted(rows, batch.index.numpy())
        valid = batch.valid.cpu().numpy()
        np.add.at(total, places[valid], values[valid])
        np.add.at(count, places[valid], 1)
        done += len(batch)
        if on_batch is not None:
            on_batch(done)
    read = count > 0
    if total is None or not read.any():
        raise MatineeError(f"{loader.pack.path}: none of {len(rows)} samples could be read")
    names = loader.pack.samples.column("sample")
    return ClipVectors(
        index=rows[read],
        samples=tuple(names[int(row)].as_py() for row in rows[read]),
        vectors=(total[read] / count[read, None]).astype(np.float32),
        skipped=tuple(names[int(row)].as_py() for row in rows[~read]),
    )


@torch.no_grad()
def embed_texts(
    task: ContrastiveTask,
    texts: Sequence[str],
    autocast: Autocast = nullcontext,
    *,
    batch_size: int = 256,
) -> tuple[NDArray[np.float32], int]:
    """Unit vectors float32 [T, D] of texts, and how many were cut to the context."""
    device = next(task.model.parameters()).device
    rows, cut = [], 0
    for start in range(0, len(texts), batch_size):
        tokens = task.model.text.tokenize(texts[start : start + batch_size])
        cut += tokens.cut
        with autocast():
            rows.append(task.model.embed_text(tokens.ids.to(device)).float().cpu().numpy())
    return np.concatenate(rows), cut


def unit(vectors_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of length one."""
    length = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    scaled: NDArray[np.float32] = vectors_ND / np.maximum(length, 1e-12)
    return scaled
