"""Retrieval between the clips and the captions of a split."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.data.epochs import EpochLoader
from matinee.errors import ConfigError
from matinee.evaluation.arrays import unit_rows
from matinee.evaluation.embeddings import ClipVectors, embed_clips, embed_texts
from matinee.evaluation.means import Autocast, evaluation_mode
from matinee.evaluation.mir import distinct_captions, mir_of, read_class_sets, read_official
from matinee.evaluation.results import Evaluated, measured_on_first
from matinee.evaluation.retrieval import best_ranks, retrieval_metrics
from matinee.pack.reading.selection import SampleTable
from matinee.tasks.contrastive import ContrastiveTask


def run_retrieval(
    task: ContrastiveTask,
    loader: EpochLoader,
    autocast: Autocast = nullcontext,
    *,
    sentences: Path | None = None,
    on_batch: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Evaluated | None:
    """Recall and ranks in both directions; with columns `verb` and `noun` also EK-100 MIR.

    Every caption is a query, and only its own clip is right: `repeated` counts captions whose words
    another one has too. For MIR see `mir_of`.

    Args:
        sentences: the benchmark's table of them, for MIR; see Note [Sentences of MIR].
        on_batch, should_stop: as `mean_over_views` takes them.

    Raises:
        ConfigError: a sample without a caption; sentences that do not fit the pack. Both before any
            clip is read.
        MatineeError: not one sample could be read.
    """
    pack = loader.pack
    check_captions(pack, loader.all_samples)
    sets = read_class_sets(pack)
    official = None if sentences is None else read_official(sentences, pack, sets)
    with evaluation_mode(task):
        clips = embed_clips(
            lambda batch: task.model.embed_video(batch.video), loader, autocast,
            on_batch=on_batch, should_stop=should_stop,
        )  # fmt: skip
        if clips is None:
            return None
        captions = pack.captions_of(clips.index)
        texts = [text for own in captions for text in own]
        clip_of_text = np.repeat(np.arange(len(captions)), [len(own) for own in captions])
        vectors, cut = embed_texts(task, texts, autocast)
        of_official = None if official is None else embed_texts(task, official.texts, autocast)[0]

    def measure() -> Evaluated:
        video = unit_rows(clips.vectors).astype(np.float32)
        found = _retrieved(clips, texts, clip_of_text, video @ vectors.T)
        found.metrics["cut"] = cut
        if sets is not None and official is not None and of_official is not None:
            found.metrics.update(mir_of(video @ of_official.T, clips.index, official, sets))
        elif sets is not None:
            distinct, places = distinct_captions(texts, clips.index[clip_of_text], sets)
            found.metrics.update(mir_of(video @ vectors[places].T, clips.index, distinct, sets))
        return found

    return measured_on_first(measure)


def check_captions(pack: SampleTable, rows: NDArray[np.int64]) -> None:
    """Refuse samples without a caption.

    Raises:
        ConfigError: with how many there are, and the first.
    """
    bare = [row for row, own in zip(rows.tolist(), pack.captions_of(rows), strict=True) if not own]
    if bare:
        raise ConfigError(
            f"{pack.path}: {len(bare)} of {len(rows)} samples to evaluate have no caption (column "
            f"'text'), the first is {pack.samples.column('sample')[bare[0]].as_py()!r}: give them "
            "one, or leave them out with --split"
        )


def _retrieved(
    clips: ClipVectors,
    texts: list[str],
    clip_of_text: NDArray[np.int64],
    similarity_VT: NDArray[np.float32],
) -> Evaluated:
    """Recalls and ranks, and a row for each caption."""
    metrics: dict[str, Any] = dict(retrieval_metrics(similarity_VT, clip_of_text))
    metrics |= {
        "samples": len(clips.index),
        "captions": len(texts),
        "repeated": len(texts) - len(set(texts)),
        "skipped": len(clips.skipped),
    }
    ranks = best_ranks(similarity_VT.T, clip_of_text, np.arange(len(clips.index)))
    nearest = similarity_VT.argmax(axis=0)
    rows = [
        {
            "sample": clips.samples[clip],
            "index": int(clips.index[clip]),
            "text": texts[t],
            "rank": int(ranks[t]),
            "nearest": clips.samples[nearest[t]],
            "similarity": float(similarity_VT[clip, t]),
        }
        for t, clip in enumerate(clip_of_text)
    ]
    return Evaluated(metrics, rows)
