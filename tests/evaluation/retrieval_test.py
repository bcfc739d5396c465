"""Recall and ranks against sorting every query by itself, and torchmetrics."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.retrieval import retrieval_hit_rate

from matinee.errors import ConfigError
from matinee.evaluation import arrays
from matinee.evaluation.retrieval import best_ranks, recall_at_k, retrieval_metrics


def naive_rank(scores, right):
    """Place of the first right candidate when wrong ones go first among equals."""
    order = sorted(range(len(scores)), key=lambda c: (-scores[c], right[c]))
    return 1 + next(place for place, c in enumerate(order) if right[c])


@given(st.integers(1, 9), st.integers(1, 3), st.integers(1, 6), st.integers(0, 2**31))
def test_ranks_equal_a_sorted_list_with_ties_and_several_captions(clips, most, levels, seed):
    """Few levels of similarity, so that ties are common; 1 to `most` captions a clip."""
    rng = np.random.default_rng(seed)
    clip_of_text = np.concatenate(
        [np.arange(clips), rng.integers(0, clips, rng.integers(0, most * clips))]
    )
    rng.shuffle(clip_of_text)
    similarity = rng.integers(0, levels, (clips, len(clip_of_text))).astype(np.float32)
    clip = np.arange(clips)
    t2v = [naive_rank(similarity[:, t], clip == clip_of_text[t]) for t in range(len(clip_of_text))]
    v2t = [naive_rank(similarity[v], clip_of_text == v) for v in range(clips)]
    assert best_ranks(similarity.T, clip_of_text, clip).tolist() == t2v
    assert best_ranks(similarity, clip, clip_of_text).tolist() == v2t
    found = retrieval_metrics(similarity, clip_of_text)
    for direction, ranks in (("t2v", t2v), ("v2t", v2t)):
        for k in (1, 5, 10):
            wanted = sum(rank <= k for rank in ranks) / len(ranks)
            assert found[f"{direction}_r{k}"] == pytest.approx(wanted)
        assert found[f"{direction}_median_rank"] == np.median(ranks)
        assert found[f"{direction}_mean_rank"] == pytest.approx(np.mean(ranks))


@pytest.mark.parametrize("k", [1, 5, 10])
def test_recall_equals_the_hit_rate_of_torchmetrics(k):
    """One right clip a query, no ties: R@k is the mean hit rate."""
    rng = np.random.default_rng(k)
    similarity = rng.standard_normal((40, 30)) + 2 * np.eye(40, 30)
    target = np.concatenate([np.arange(30), rng.integers(0, 30, 10)])
    rates = [
        retrieval_hit_rate(
            torch.from_numpy(row), torch.from_numpy(np.arange(30) == right), top_k=k
        ).item()
        for row, right in zip(similarity, target, strict=True)
    ]
    ranks = best_ranks(similarity, target, np.arange(30))
    assert 0 < np.mean(rates) < 1
    assert recall_at_k(ranks, k) == pytest.approx(np.mean(rates))


def test_a_constant_similarity_earns_nothing():
    """Every clip ties with every other."""
    found = retrieval_metrics(np.zeros((20, 20)), np.arange(20))
    assert found["t2v_r1"] == found["v2t_r10"] == 0
    assert found["t2v_median_rank"] == found["v2t_mean_rank"] == 20


def test_a_perfect_similarity_finds_every_clip_by_any_of_its_captions():
    """Captions of one clip do not push each other down."""
    clip_of_text = np.repeat(np.arange(12), 5)
    similarity = (np.arange(12)[:, None] == clip_of_text).astype(np.float32)
    found = retrieval_metrics(similarity, clip_of_text)
    for direction in ("t2v", "v2t"):
        assert found[f"{direction}_r1"] == found[f"{direction}_mean_rank"] == 1


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.uint8, np.bool_])
def test_chunks_and_types_do_not_change_ranks(dtype, monkeypatch):
    """One row a chunk; integers and half floats."""
    rng = np.random.default_rng(0)
    similarity = rng.integers(0, 100, (17, 17)).astype(dtype)
    wanted = best_ranks(similarity.astype(np.float64), np.arange(17), np.arange(17))
    monkeypatch.setattr(arrays, "_CHUNK", 5)
    assert np.array_equal(best_ranks(similarity, np.arange(17), np.arange(17)), wanted)


def test_what_cannot_be_ranked_is_refused():
    """One line each."""
    good = np.eye(3)
    with pytest.raises(ConfigError, match="NaN"):
        retrieval_metrics(np.where(good > 0, np.nan, good), np.arange(3))
    with pytest.raises(ConfigError, match=r"query 2 .* no right candidate"):
        retrieval_metrics(good, np.array([0, 1, 1]))
    with pytest.raises(ConfigError, match="text 1 is of clip 3, but there are 3"):
        retrieval_metrics(good, np.array([0, 3, 1]))
    with pytest.raises(ConfigError, match="2 queries and 3 candidates were expected"):
        retrieval_metrics(good, np.array([0, 1]))
    with pytest.raises(ConfigError, match="without texts"):
        retrieval_metrics(np.zeros((3, 0)), np.array([], dtype=np.int64))
