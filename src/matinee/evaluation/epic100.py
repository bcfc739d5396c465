"""EPIC-KITCHENS-100: multi-instance retrieval (MIR), and verbs and nouns of actions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from matinee.errors import ConfigError
from matinee.evaluation.arrays import floating, refuse_nan, row_chunks

Classes = Sequence[Collection[int]]  # of each clip or sentence: its class numbers
MAP = Literal["graded", "binary"]

# Note [Graded mAP]
#
# The relevancy of a clip and a sentence is graded (0, 1/4, …, 1), but average precision knows only
# hits and misses. The code that the benchmark publishes calls relevancy 1 a hit, yet takes the
# precision at a hit from the running sum of *all* relevancies above it, graded ones included; the
# figures in papers are of that kind ("graded", the default). The textbook's average precision
# counts hits alone ("binary"); it is never higher. Both are 1 where every hit ranks first. (Graded
# mAP can rise when a hit sinks below a related candidate: 0, 1, ¾ gives ½, but 0, ¾, 1 gives 7/12.)
# Where candidates are equally similar the published code leaves the order to the sorting routine.
# Here the less relevant one goes first, so that binary mAP and nDCG of a constant similarity are
# the worst there can be.


def relevancy_matrix(
    video_verbs: Classes, video_nouns: Classes, text_verbs: Classes, text_nouns: Classes
) -> NDArray[np.float32]:
    """Relevancy [V, T] in 0 … 1: mean of the IoU of verb classes and the IoU of noun classes.

    Raises:
        ConfigError: a clip or sentence without a verb or a noun; lists of different lengths.
    Source: Damen et al., arXiv 2006.13256, on action retrieval.
    """
    if len(video_verbs) != len(video_nouns) or len(text_verbs) != len(text_nouns):
        raise ConfigError(
            f"{len(video_verbs)} verb sets and {len(video_nouns)} noun sets of clips, "
            f"{len(text_verbs)} and {len(text_nouns)} of texts: each needs one of either"
        )
    relevancy = _iou(video_verbs, text_verbs)
    relevancy += _iou(video_nouns, text_nouns)
    relevancy *= 0.5
    return relevancy


def _iou(first: Classes, second: Classes) -> NDArray[np.float32]:
    """Intersection over union [len(first), len(second)] of sets; exact where it is 0 or 1."""
    places = {number: i for i, number in enumerate(sorted(set().union(*first, *second)))}
    one, other = _member_matrix(first, places), _member_matrix(second, places)
    iou = np.empty((len(first), len(second)), dtype=np.float32)
    for rows in row_chunks(iou):
        shared = one[rows] @ other.T
        union = one[rows].sum(axis=1)[:, None] + other.sum(axis=1)[None, :] - shared
        np.divide(shared, union, out=iou[rows])
    return iou


def _member_matrix(sets: Classes, places: dict[int, int]) -> NDArray[np.float32]:
    matrix = np.zeros((len(sets), len(places)), dtype=np.float32)
    for i, members in enumerate(sets):
        if not members:
            raise ConfigError(f"clip or text {i} (from 0) has no class: its IoU is undefined")
        matrix[i, [places[number] for number in members]] = 1
    return matrix


@dataclass(frozen=True)
class QueryScores:
    """Of each query, float64 [Q]: average precision both ways (Note [Graded mAP]) and nDCG.

    Precision is NaN for a query without a hit, a candidate of relevancy 1; nDCG for one without any
    relevancy.
    """

    graded: NDArray[np.float64]
    binary: NDArray[np.float64]
    ndcg: NDArray[np.float64]


def query_scores(similarity_QC: NDArray[Any], relevancy_QC: NDArray[Any]) -> QueryScores:
    """Average precision and normalised discounted cumulative gain of each row's ranking.

    DCG sums relevancy / log2(1 + rank) over the first k ranks, k being how many candidates have any
    relevancy for the query; nDCG divides by the DCG of the best ranking.

    Raises:
        ConfigError: shapes that disagree, a NaN in the similarity.
    """
    if similarity_QC.shape != relevancy_QC.shape or similarity_QC.ndim != 2:
        raise ConfigError(
            f"similarity of shape {similarity_QC.shape} and relevancy of shape "
            f"{relevancy_QC.shape}: both must be [queries, candidates]"
        )
    queries, candidates = similarity_QC.shape
    scores = QueryScores(*(np.empty(queries) for _ in range(3)))
    rank = np.arange(1, candidates + 1, dtype=np.float64)
    discount = 1 / np.log2(1 + rank)
    for rows in row_chunks(similarity_QC):
        relevancy = np.ascontiguousarray(relevancy_QC[rows])
        ranked = _ranked(np.ascontiguousarray(similarity_QC[rows]), relevancy)
        hit = ranked == 1
        hits = hit.sum(axis=1)
        # Only hits are looked at: they are few, the candidates many.
        query, place = np.nonzero(hit)
        for wanted, gain in ((scores.graded, ranked), (scores.binary, hit)):
            running = np.cumsum(gain, axis=1, dtype=np.float64)
            precision = running[query, place] / rank[place]
            wanted[rows] = _ratio(np.bincount(query, precision, len(hits)), hits)
        counted = rank <= (relevancy > 0).sum(axis=1)[:, None]
        best = np.sort(relevancy, axis=1)[:, ::-1]  # beyond k it is zero anyway
        scores.ndcg[rows] = _ratio(np.where(counted, ranked, 0) @ discount, best @ discount)
    return scores


def _ratio(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    """Quotient of the two, NaN where the whole is nothing."""
    ratio = np.full(len(part), np.nan)
    np.divide(part, whole, out=ratio, where=whole > 0)
    return ratio


def _ranked(similarity: NDArray[Any], relevancy: NDArray[Any]) -> NDArray[Any]:
    """Relevancies of each row from the most similar candidate down; of equals, the least first."""
    refuse_nan(similarity, "similarities")
    distance = -floating(similarity)
    order = np.argsort(distance, axis=1)
    ranked = np.take_along_axis(relevancy, order, axis=1)
    distance = np.take_along_axis(distance, order, axis=1)
    equal = distance[:, 1:] == distance[:, :-1]
    for row in np.nonzero((equal & (ranked[:, 1:] < ranked[:, :-1])).any(axis=1))[0]:
        ranked[row] = ranked[row][np.lexsort((ranked[row], distance[row]))]
    return ranked


def mir_metrics(
    similarity_VT: NDArray[Any], relevancy_VT: NDArray[Any], map: MAP = "graded"
) -> dict[str, float]:
    """`v2t_map`, `t2v_map`, `average_map`, and the same of `ndcg`, as parts of 1.

    Means over the queries that have a hit (or any relevancy, for nDCG); how many have none is
    `v2t_without_hit`, `t2v_without_hit`. With the benchmark's own tables every query has one.

    Args:
        map: which average precision, see Note [Graded mAP].

    Raises:
        ConfigError: as `query_scores`; not one query has a hit.
    """
    return _both_directions(
        query_scores(similarity_VT, relevancy_VT),
        query_scores(similarity_VT.T, relevancy_VT.T),
        map,
    )


def mir_chance(relevancy_VT: NDArray[Any], map: MAP = "graded") -> dict[str, float]:
    """What `mir_metrics` is expected to be where similarities are random: exact, without drawing.

    Raises:
        ConfigError: not one query has a hit.
    """
    return _both_directions(chance_scores(relevancy_VT), chance_scores(relevancy_VT.T), map)


def _both_directions(v2t: QueryScores, t2v: QueryScores, map: MAP) -> dict[str, float]:
    if np.isnan(v2t.binary).all() or np.isnan(t2v.binary).all():
        raise ConfigError("no clip and sentence have a relevancy of 1: there is nothing to find")
    metrics: dict[str, float] = {}
    for name, of in (("map", map), ("ndcg", "ndcg")):
        there, back = (float(np.nanmean(getattr(scores, of))) for scores in (v2t, t2v))
        metrics |= {
            f"v2t_{name}": there,
            f"t2v_{name}": back,
            f"average_{name}": (there + back) / 2,
        }
    for direction, scores in (("v2t", v2t), ("t2v", t2v)):
        metrics[f"{direction}_without_hit"] = int(np.isnan(scores.binary).sum())
    return metrics


def chance_scores(relevancy_QC: NDArray[Any]) -> QueryScores:
    """Expectation of `query_scores` over all orders of the candidates, each equally likely.

    A hit is at rank r with probability 1 / C. What lies above it is then a random draw of r - 1 of
    the other C - 1 candidates, whose relevancies sum to S - 1: the expected precision there is
    (1 + (r - 1) (S - 1) / (C - 1)) / r. Summed over r with the harmonic number H of C,
    AP = (H + (C - H) (S - 1) / (C - 1)) / C; S is the number of hits in the binary case. The
    expected gain at any rank is the mean relevancy.
    """
    queries, candidates = relevancy_QC.shape
    scores = QueryScores(*(np.empty(queries) for _ in range(3)))
    rank = np.arange(1, candidates + 1, dtype=np.float64)
    harmonic, discount = (1 / rank).sum(), 1 / np.log2(1 + rank)
    summed_discount = np.concatenate(([0.0], np.cumsum(discount)))
    for rows in row_chunks(relevancy_QC):
        relevancy = np.ascontiguousarray(relevancy_QC[rows])
        total, hits = relevancy.sum(axis=1, dtype=np.float64), (relevancy == 1).sum(axis=1)
        for wanted, amount in ((scores.graded, total), (scores.binary, hits)):
            others = (amount - 1) / max(candidates - 1, 1)
            chance = (harmonic + (candidates - harmonic) * others) / candidates
            wanted[rows] = np.where(hits > 0, chance, np.nan)
        best = np.sort(relevancy, axis=1)[:, ::-1] @ discount
        counted = (relevancy > 0).sum(axis=1)
        scores.ndcg[rows] = _ratio(total / candidates * summed_discount[counted], best)
    return scores


def marginalise(
    action_probabilities: NDArray[Any],
    verb_of_action: NDArray[np.int64],
    noun_of_action: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Verb [N, V] and noun [N, M] probabilities: sums over the actions [N, A] that have each.

    Args:
        verb_of_action, noun_of_action: classes [A]; V and M are one more than the highest.

    Raises:
        ConfigError: not one verb and noun an action, or a class below 0.
    Source: Damen et al., arXiv 2006.13256, on action recognition.
    """
    marginals = []
    actions = action_probabilities.shape[1]
    for name, classes in (("verb", verb_of_action), ("noun", noun_of_action)):
        if not len(classes) or len(classes) != actions:
            raise ConfigError(f"{len(classes)} {name}s for {actions} actions: one each is needed")
        if classes.min() < 0:
            raise ConfigError(f"{name} classes of actions must be 0 or more")
        has = np.zeros((actions, int(classes.max()) + 1))
        has[np.arange(actions), classes] = 1
        marginals.append(action_probabilities @ has)
    return marginals[0], marginals[1]
