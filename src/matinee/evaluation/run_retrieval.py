"""Retrieval between the clips and the captions of a split."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.data.epochs import EpochLoader
from matinee.evaluation.embeddings import Autocast, embed_clips, embed_texts, unit
from matinee.evaluation.epic100 import MAP, mir_metrics, relevancy_matrix
from matinee.evaluation.results import Evaluated
from matinee.evaluation.retrieval import best_ranks, retrieval_metrics
from matinee.models.text import check_texts
from matinee.pack.selection import SampleTable
from matinee.tasks.contrastive import ContrastiveTask
from matinee.tasks.vocabulary import split_labels


def run_retrieval(
    task: ContrastiveTask,
    loader: EpochLoader,
    autocast: Autocast = nullcontext,
    *,
    on_batch: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Evaluated | None:
    """Recall and ranks in both directions; with columns `verb` and `noun` also EK-100 MIR.

    Every caption is a query, and only its own clip is right: `repeated` counts captions whose words
    another one has too. For MIR equal captions are one sentence, and both kinds of mAP are
    given: `mir_graded_…` as published, `mir_binary_…` as in textbooks.

    Raises:
        ConfigError: a sample without a caption.
        MatineeError: not one sample could be read.
    """
    was_training = task.training
    task.eval()
    try:
        clips = embed_clips(
            lambda batch: task.model.embed_video(batch.video), loader, autocast,
            on_batch=on_batch, should_stop=should_stop,
        )  # fmt: skip
        if clips is None:
            return None
        pack = loader.pack
        captions = pack.captions_of(clips.index)
        check_texts([" ".join(own) for own in captions], clips.samples)
        texts = [text for own in captions for text in own]
        clip_of_text = np.repeat(np.arange(len(captions)), [len(own) for own in captions])
        vectors, cut = embed_texts(task, texts, autocast)
    finally:
        task.train(was_training)
    video = unit(clips.vectors)
    similarity_VT = video @ vectors.T
    metrics: dict[str, Any] = dict(retrieval_metrics(similarity_VT, clip_of_text))
    if {"verb", "noun"} <= set(pack.samples.column_names):
        metrics |= _mir(pack, clips.index, clip_of_text, texts, similarity_VT)
    metrics |= {
        "samples": len(clips.index),
        "captions": len(texts),
        "repeated": len(texts) - len(set(texts)),
        "cut": cut,
        "skipped": len(clips.skipped),
    }
    ranks = best_ranks(similarity_VT.T, clip_of_text, np.arange(len(captions)))
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


def _mir(
    pack: SampleTable,
    index: NDArray[np.int64],
    clip_of_text: NDArray[np.int64],
    texts: list[str],
    similarity_VT: NDArray[np.float32],
) -> dict[str, float]:
    """Multi-instance retrieval over distinct sentences, the first clip of each giving its sets."""
    columns = [pack.samples.column(name).to_pylist() for name in ("verb", "noun")]
    verbs, nouns = (_numbered([column[int(row)] or "" for row in index]) for column in columns)
    if not all(verbs) or not all(nouns):
        return {}
    first: dict[str, int] = {}
    for t, text in enumerate(texts):
        first.setdefault(text, t)
    kept = np.array(list(first.values()))
    owners = [int(clip) for clip in clip_of_text[kept]]
    relevancy = relevancy_matrix(
        verbs, nouns, [verbs[clip] for clip in owners], [nouns[clip] for clip in owners]
    )
    similarity = similarity_VT[:, kept]
    kinds: tuple[MAP, ...] = ("graded", "binary")
    return {
        f"mir_{kind}_{name}": value
        for kind in kinds
        for name, value in mir_metrics(similarity, relevancy, kind).items()
    }


def _numbered(cells: list[str]) -> list[frozenset[int]]:
    """The set of classes in each cell, as numbers."""
    sets = [split_labels(cell) for cell in cells]
    place = {name: i for i, name in enumerate(sorted({name for held in sets for name in held}))}
    return [frozenset(place[name] for name in held) for held in sets]
