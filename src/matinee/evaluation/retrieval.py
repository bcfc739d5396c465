"""Text-to-video and video-to-text retrieval: recall at k, median and mean rank."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.errors import ConfigError
from matinee.evaluation.arrays import floating, refuse_nan, row_chunks


def best_ranks(
    similarity_QC: NDArray[Any],
    query_group: NDArray[np.int64],
    candidate_group: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Rank [Q], from 1, of each query's best right candidate: one of the query's own group.

    Wrong candidates as similar as the right one rank before it: a constant similarity is the worst
    ranking and earns nothing. Other right candidates never push the best one down.

    Raises:
        ConfigError: shapes that disagree, a NaN, a query without a right candidate.
    """
    queries, candidates = len(query_group), len(candidate_group)
    if similarity_QC.shape != (queries, candidates):
        raise ConfigError(
            f"similarity of shape {similarity_QC.shape}: {queries} queries and "
            f"{candidates} candidates were expected"
        )
    ranks = np.empty(queries, dtype=np.int64)
    for rows in row_chunks(similarity_QC):
        chunk = floating(similarity_QC[rows])
        refuse_nan(chunk, "similarities")
        right = query_group[rows, None] == candidate_group[None, :]
        if not right.any(axis=1).all():
            lonely = rows.start + int((~right.any(axis=1)).argmax())
            raise ConfigError(f"query {lonely} (from 0) has no right candidate: leave it out")
        best = np.where(right, chunk, -np.inf).max(axis=1, keepdims=True)
        ranks[rows] = 1 + ((chunk >= best) & ~right).sum(axis=1)
    return ranks


def recall_at_k(ranks: NDArray[np.int64], k: int) -> float:
    """Part of the queries whose rank (from 1) is at most `k`."""
    return float((ranks <= k).mean())


def retrieval_metrics(
    similarity_VT: NDArray[Any], clip_of_text: NDArray[np.int64]
) -> dict[str, float]:
    """Both directions of a [clips, texts] similarity; text t describes clip `clip_of_text[t]`.

    A clip may have several texts. Text to video (t2v): every text is a query with one right clip.
    Video to text (v2t): every clip is a query, its best text counts. Recalls are parts of 1:
    `t2v_r1`, `t2v_r5`, `t2v_r10`, `t2v_median_rank`, `t2v_mean_rank`, and the same for `v2t_`.

    Raises:
        ConfigError: shapes that disagree, a NaN, no texts, a text of no clip, a clip without text.
    """
    clips = similarity_VT.shape[0]
    if not len(clip_of_text):
        raise ConfigError("retrieval cannot be measured without texts")
    outside = (clip_of_text < 0) | (clip_of_text >= clips)
    if outside.any():
        text = int(outside.argmax())
        raise ConfigError(f"text {text} is of clip {clip_of_text[text]}, but there are {clips}")
    clip = np.arange(clips)
    found = {
        "t2v": best_ranks(similarity_VT.T, clip_of_text, clip),
        "v2t": best_ranks(similarity_VT, clip, clip_of_text),
    }
    metrics = {}
    for direction, ranks in found.items():
        for k in (1, 5, 10):
            metrics[f"{direction}_r{k}"] = recall_at_k(ranks, k)
        metrics[f"{direction}_median_rank"] = float(np.median(ranks))
        metrics[f"{direction}_mean_rank"] = float(ranks.mean())
    return metrics
