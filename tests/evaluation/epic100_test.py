"""EK-100 retrieval and verbs and nouns against loops, enumeration and scikit-learn."""

import csv
import itertools
import math
from ast import literal_eval

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from matinee.errors import ConfigError
from matinee.evaluation import arrays
from matinee.evaluation.epic100 import (
    chance_scores,
    marginalise,
    mir_chance,
    mir_metrics,
    query_scores,
    relevancy_matrix,
)
from matinee.evaluation.epic100_csv import read_clips, read_sentences


def naive_scores(similarity, relevancy):
    """(graded AP, binary AP, nDCG) of one query, term by term in Python floats."""
    order = sorted(range(len(similarity)), key=lambda c: (-similarity[c], relevancy[c]))
    ranked = [float(relevancy[c]) for c in order]
    graded = binary = 0.0
    for place, value in enumerate(ranked):
        if value == 1:
            graded += sum(ranked[: place + 1]) / (place + 1)
            binary += sum(v == 1 for v in ranked[: place + 1]) / (place + 1)
    hits = sum(v == 1 for v in ranked)
    k = sum(v > 0 for v in ranked)
    gain = lambda values: sum(v / math.log2(i + 2) for i, v in enumerate(values[:k]))  # noqa: E731
    if not k:
        return math.nan, math.nan, math.nan
    ndcg = gain(ranked) / gain(sorted(ranked, reverse=True))
    return (graded / hits, binary / hits, ndcg) if hits else (math.nan, math.nan, ndcg)


def some_relevancy(rng, queries, candidates):
    """Graded relevancies; each query and each candidate has one of 1."""
    values = np.array([0, 0, 0, 1 / 6, 0.25, 0.5, 0.75, 1], dtype=np.float32)
    relevancy = rng.choice(values, (queries, candidates))
    relevancy[np.arange(queries), rng.integers(0, candidates, queries)] = 1
    relevancy[rng.integers(0, queries, candidates), np.arange(candidates)] = 1
    return relevancy


@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 40), st.integers(0, 2**31))
def test_scores_equal_a_loop_also_where_similarities_tie(queries, candidates, levels, seed):
    """Few levels: many ties, of which the less relevant goes first. Some queries have no hit."""
    rng = np.random.default_rng(seed)
    relevancy = some_relevancy(rng, queries, candidates)
    relevancy[:: rng.integers(2, 5)] *= rng.choice([0.5, 0])
    similarity = rng.integers(0, levels, relevancy.shape).astype(np.float32)
    found = query_scores(similarity, relevancy)
    wanted = np.array([naive_scores(s, r) for s, r in zip(similarity, relevancy, strict=True)]).T
    np.testing.assert_allclose([found.graded, found.binary, found.ndcg], wanted, rtol=1e-12)


def test_binary_precision_and_ndcg_equal_scikit_learn():
    """Without ties; nDCG cut at each query's own number of relevant candidates."""
    rng = np.random.default_rng(3)
    relevancy = some_relevancy(rng, 30, 50)
    similarity = rng.standard_normal(relevancy.shape) + relevancy
    found = query_scores(similarity, relevancy)
    for i, (scores, grades) in enumerate(zip(similarity, relevancy, strict=True)):
        wanted = metrics.average_precision_score(grades == 1, scores)
        assert found.binary[i] == pytest.approx(wanted, rel=1e-9)
        wanted = metrics.ndcg_score(grades[None], scores[None], k=int((grades > 0).sum()))
        assert found.ndcg[i] == pytest.approx(wanted, rel=1e-9)
    assert (found.graded > found.binary).all()


def test_graded_precision_by_hand():
    """Ranked 0.5, 1, 0, 1: hits at ranks 2 and 4, where the sums are 1.5 and 2.5; and the Note."""
    found = query_scores(np.array([[4.0, 3, 2, 1]]), np.array([[0.5, 1, 0, 1]]))
    assert found.graded[0] == pytest.approx((1.5 / 2 + 2.5 / 4) / 2)
    assert found.binary[0] == pytest.approx((1 / 2 + 2 / 4) / 2)
    ranked = np.array([[0, 1, 0.75], [0, 0.75, 1]])
    found = query_scores(np.array([[3.0, 2, 1]] * 2), ranked)
    assert found.graded.tolist() == pytest.approx([1 / 2, 7 / 12])


def test_directions_are_the_matrix_and_its_transpose(monkeypatch):
    """And neither chunks nor the layout of the memory matter."""
    rng = np.random.default_rng(4)
    relevancy = some_relevancy(rng, 13, 9)
    similarity = rng.standard_normal(relevancy.shape)
    whole = mir_metrics(similarity, relevancy)
    v2t = [naive_scores(s, r) for s, r in zip(similarity, relevancy, strict=True)]
    t2v = [naive_scores(s, r) for s, r in zip(similarity.T, relevancy.T, strict=True)]
    wanted = {"v2t_map": np.mean(v2t, 0)[0], "v2t_ndcg": np.mean(v2t, 0)[2],
              "t2v_map": np.mean(t2v, 0)[0], "t2v_ndcg": np.mean(t2v, 0)[2]}  # fmt: skip
    wanted |= {"v2t_without_hit": 0, "t2v_without_hit": 0}
    for name in ("map", "ndcg"):
        wanted[f"average_{name}"] = (wanted[f"v2t_{name}"] + wanted[f"t2v_{name}"]) / 2
    assert whole == pytest.approx(wanted)
    assert mir_metrics(similarity, relevancy, "binary")["v2t_map"] == pytest.approx(
        np.mean(v2t, 0)[1]
    )
    monkeypatch.setattr(arrays, "_CHUNK", 20)
    assert mir_metrics(np.asfortranarray(similarity), relevancy) == pytest.approx(whole)


@pytest.mark.parametrize("grades", [(1, 0.5, 0.25, 0, 0, 0), (1, 1, 0.5, 0, 0), (1,), (1, 1, 1)])
def test_chance_is_the_mean_over_all_orders(grades):
    """Every permutation of the candidates, scored by the loop."""
    every = [naive_scores(order, grades) for order in itertools.permutations(range(len(grades)))]
    found = chance_scores(np.array([grades], dtype=np.float32))
    np.testing.assert_allclose(
        [found.graded[0], found.binary[0], found.ndcg[0]], np.mean(every, axis=0), rtol=1e-12
    )


@given(st.integers(1, 5), st.integers(1, 8), st.integers(0, 2**31))
def test_the_oracle_is_perfect_and_a_constant_is_the_worst(queries, candidates, seed):
    """Nothing scores above the relevancy itself; by binary mAP and nDCG nothing below constants."""
    rng = np.random.default_rng(seed)
    relevancy = some_relevancy(rng, queries, candidates)
    similarity = rng.standard_normal(relevancy.shape)
    some = mir_metrics(similarity, relevancy, "binary")
    worst = mir_metrics(np.zeros_like(relevancy), relevancy, "binary")
    assert all(worst[key] <= some[key] + 1e-12 for key in some)  # both without_hit are 0
    assert max(mir_metrics(similarity, relevancy).values()) <= 1 + 1e-12
    for variant in ("graded", "binary"):
        best = mir_metrics(relevancy, relevancy, variant)
        assert all(best[key] == pytest.approx(1) for key in best if "without" not in key)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**31))
def test_relevancy_is_the_mean_of_two_ious(clips, texts, seed):
    """Python sets; the classes of clips and of texts need not overlap."""
    rng = np.random.default_rng(seed)
    sets = [
        [set(rng.integers(0, 9, rng.integers(1, 5)).tolist()) for _ in range(count)]
        for count in (clips, clips, texts, texts)
    ]
    found = relevancy_matrix(*sets)
    iou = lambda a, b: len(a & b) / len(a | b)  # noqa: E731
    for v in range(clips):
        for t in range(texts):
            wanted = (iou(sets[0][v], sets[2][t]) + iou(sets[1][v], sets[3][t])) / 2
            assert found[v, t] == pytest.approx(wanted, abs=1e-7)
            assert (found[v, t] == 1) == (wanted == 1) and (found[v, t] > 0) == (wanted > 0)


@pytest.fixture(scope="module")
def real(real_data):
    """The table of the real clips, the sentences, and their relevancy."""
    table = real_data / "epic100" / "EPIC_100_retrieval_test.csv"
    clips = read_clips(table)
    sentences = read_sentences(table.with_name("EPIC_100_retrieval_test_sentence.csv"), clips)
    relevancy = relevancy_matrix(clips.verbs, clips.nouns, sentences.verbs, sentences.nouns)
    return table, sentences, relevancy


def test_real_relevancy_has_the_published_shape_and_mean(real):
    """And single entries equal a loop over the CSV file's own rows."""
    table, sentences, relevancy = real
    assert relevancy.shape == (9668, 3842)
    assert relevancy.mean(dtype=np.float64) == pytest.approx(0.055, abs=5e-4)
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    by_id = {row["narration_id"]: row for row in rows}
    rng = np.random.default_rng(0)
    for v, t in zip(rng.integers(0, 9668, 500), rng.integers(0, 3842, 500), strict=True):
        clip, text = rows[v], by_id[sentences.ids[t]]
        one, two = (set(literal_eval(row["all_noun_classes"])) for row in (clip, text))
        same = clip["verb_class"] == text["verb_class"]
        assert relevancy[v, t] == pytest.approx((same + len(one & two) / len(one | two)) / 2)


def test_real_chance_figures_and_a_random_similarity_agree(real):
    """In percent; the benchmark's own code gives the same for random similarities."""
    relevancy = real[2]
    chance = {key: round(100 * value, 1) for key, value in mir_chance(relevancy).items()}
    assert chance["v2t_without_hit"] == chance["t2v_without_hit"] == 0
    assert chance["v2t_map"] == 5.7 and chance["t2v_map"] == 5.6
    assert chance["v2t_ndcg"] == 10.8 and chance["t2v_ndcg"] == 10.9
    some = relevancy[:: len(relevancy) // 400]
    drawn = query_scores(np.random.default_rng(0).random(some.shape), some)
    expected = chance_scores(some)
    for name in ("graded", "binary", "ndcg"):
        difference = getattr(drawn, name) - getattr(expected, name)
        assert abs(difference.mean()) < 4 * difference.std() / math.sqrt(len(some))
    oracle = query_scores(some, some)
    assert np.allclose([oracle.graded, oracle.binary, oracle.ndcg], 1)


def test_queries_without_a_hit_are_left_out_and_counted():
    """Equal to the metrics without them: here the last clip and the last two sentences."""
    relevancy = np.array([[1, 0.5, 0, 0.5], [0, 1, 0, 0], [0.25, 0, 0, 0.5]])
    similarity = np.random.default_rng(0).random((3, 4))
    for variant in ("graded", "binary"):
        for found, v2t, t2v in (
            (mir_metrics(similarity, relevancy, variant),
             query_scores(similarity[:2], relevancy[:2]),
             query_scores(similarity.T[:2], relevancy.T[:2])),
            (mir_chance(relevancy, variant),
             chance_scores(relevancy[:2]), chance_scores(relevancy.T[:2])),
        ):  # fmt: skip
            assert found["v2t_map"] == pytest.approx(getattr(v2t, variant).mean())
            assert found["t2v_map"] == pytest.approx(getattr(t2v, variant).mean())
            assert (found["v2t_without_hit"], found["t2v_without_hit"]) == (1, 2)
    assert np.isnan(query_scores(similarity.T, relevancy.T).ndcg).tolist() == [0, 0, 1, 0]


def test_what_has_no_relevancy_or_rank_is_refused():
    """One line each."""
    for measure in (lambda r: mir_metrics(np.zeros((1, 2)), r), mir_chance):
        with pytest.raises(ConfigError, match="there is nothing to find"):
            measure(np.array([[0.5, 0]]))
    with pytest.raises(ConfigError, match="NaN"):
        query_scores(np.array([[np.nan, 0]]), np.array([[1, 0]]))
    with pytest.raises(ConfigError, match=r"\(2, 3\)"):
        query_scores(np.zeros((2, 3)), np.ones((3, 2)))
    with pytest.raises(ConfigError, match="has no class"):
        relevancy_matrix([{1}], [set()], [{1}], [{2}])
    with pytest.raises(ConfigError, match="1 verb sets and 2 noun sets"):
        relevancy_matrix([{1}], [{1}, {2}], [{1}], [{2}])


@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**31))
def test_verbs_and_nouns_are_sums_over_actions(actions, verbs, nouns, seed):
    """A loop; every marginal sums to one."""
    rng = np.random.default_rng(seed)
    verb_of, noun_of = rng.integers(0, verbs, actions), rng.integers(0, nouns, actions)
    probabilities = rng.dirichlet(np.ones(actions), 4)
    verb, noun = marginalise(probabilities, verb_of, noun_of)
    wanted = np.zeros((4, verb_of.max() + 1)), np.zeros((4, noun_of.max() + 1))
    for i in range(4):
        for a in range(actions):
            wanted[0][i, verb_of[a]] += probabilities[i, a]
            wanted[1][i, noun_of[a]] += probabilities[i, a]
    np.testing.assert_allclose(verb, wanted[0], atol=1e-12)
    np.testing.assert_allclose(noun, wanted[1], atol=1e-12)
    np.testing.assert_allclose(verb.sum(axis=1), 1)


def test_every_action_needs_a_verb_and_a_noun():
    probabilities, classes = np.full((2, 3), 1 / 3), np.arange(3)
    with pytest.raises(ConfigError, match="2 verbs for 3 actions"):
        marginalise(probabilities, classes[:2], classes)
    with pytest.raises(ConfigError, match="noun classes of actions must be 0 or more"):
        marginalise(probabilities, classes, classes - 1)
