"""All-reduce, the slowest of n, and how training scales."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from math import ceil, log2
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matinee.errors import ConfigError
from matinee.measure.plan.assumptions import Assumptions
from matinee.measure.plan.collective import (
    Link,
    Network,
    all_reduce,
    exposed_seconds,
    ring_seconds,
    tree_seconds,
)
from matinee.measure.plan.jitter import Jitter, Lognormal, Measured, Tailed
from matinee.measure.plan.measured import read_all_reduce, read_steps
from matinee.measure.plan.published import SINGLE_NODE_S, kinetics15, kinetics_job, kinetics_seconds
from matinee.measure.plan.scaling import (
    Exchange,
    Job,
    counts_to,
    predict_step,
    same_batch_per_gpu,
    same_global_batch,
)

NETWORK = Network(8, Link(4e-6, 20e9), Link(10e-6, 10e9))
SPREAD = Tailed(0.015, 1.5, 27648)


def simulated_ring(ranks: int, size: float, link: Link) -> float:
    """Event by event: each rank holds its pieces, sends one when it has it and its link is free."""
    ready = np.zeros((ranks, ranks))  # when rank has the newest state of a piece
    link_free = np.zeros(ranks)
    for step in range(2 * (ranks - 1)):
        arrived = ready.copy()
        for rank in range(ranks):
            piece = (rank - step) % ranks
            start = max(ready[rank, piece], link_free[rank])
            link_free[rank] = start + link.alpha + size / ranks / link.rate
            arrived[(rank + 1) % ranks, piece] = max(
                arrived[(rank + 1) % ranks, piece], link_free[rank]
            )
        ready = arrived
    return float(ready.max())


@pytest.mark.parametrize("ranks", [2, 3, 6, 17])
def test_ring_formula_is_what_a_simulated_ring_takes(ranks: int) -> None:
    link = Link(5e-6, 12e9)
    assert ring_seconds(ranks, 97e6, link) == pytest.approx(simulated_ring(ranks, 97e6, link))


def test_ring_and_tree_have_their_closed_forms() -> None:
    link = Link(2e-6, 1e9)
    assert ring_seconds(8, 1e6, link) == pytest.approx(14 * 2e-6 + 2 * 7 / 8 * 1e-3)
    assert tree_seconds(8, 1e6, link) == pytest.approx(6 * 2e-6 + 2e-3)
    assert ring_seconds(1, 1e9, link) == tree_seconds(1, 1e9, link) == 0
    # Bandwidth alone: no all-reduce beats 2 (n - 1) / n of the message over each link.
    assert ring_seconds(64, 1e9, Link(0, 1e9)) == pytest.approx(2 * 63 / 64)


def test_the_shortest_way_is_taken_and_told() -> None:
    assert all_reduce(1, 1e9, NETWORK) == (0.0, "none")
    assert all_reduce(8, 1e9, NETWORK)[1] == "ring"
    assert all_reduce(8, 1e3, NETWORK)[1] == "tree"
    seconds, way = all_reduce(2048, 25e6, NETWORK)
    assert way == "tree between"
    within = ring_seconds(8, 25e6, NETWORK.inside)
    assert seconds == pytest.approx(within + 2 * ceil(log2(256)) * 10e-6 + 2 * 25e6 / 10e9)
    # A network as fast as the inside needs no second level for a large message.
    fast = Network(8, Link(1e-6, 20e9), Link(1e-6, 20e9))
    assert all_reduce(16, 1e9, fast)[1] == "one ring"


@given(
    ranks=st.integers(1, 4000), size=st.floats(1e3, 1e10), per_node=st.integers(1, 16),
    faster=st.floats(1, 100),
)  # fmt: skip
def test_more_bandwidth_is_never_slower_and_more_ranks_never_faster(
    ranks: int, size: float, per_node: int, faster: float
) -> None:
    slow = Network(per_node, Link(4e-6, 2e10), Link(1e-5, 1e10))
    quick = Network(per_node, Link(4e-6, 2e10 * faster), Link(1e-5, 1e10 * faster))
    seconds = all_reduce(ranks, size, slow)[0]
    assert all_reduce(ranks, size, quick)[0] <= seconds * (1 + 1e-12)
    assert all_reduce(ranks + 1, size, slow)[0] >= seconds * (1 - 1e-12)


def test_buckets_hide_behind_the_backward_pass_but_for_the_last() -> None:
    # By hand: four buckets ready at 1, 2, 3, 4 s; each takes 0.5 s, then 2 s.
    assert exposed_seconds(4.0, 4, 0.5) == pytest.approx(0.5)
    assert exposed_seconds(4.0, 4, 2.0) == pytest.approx(1 + 4 * 2 - 4)
    assert exposed_seconds(4.0, 1, 2.0) == pytest.approx(2.0)
    assert exposed_seconds(0.0, 4, 1.0) == pytest.approx(4.0)
    with pytest.raises(ValueError, match="0 buckets"):
        exposed_seconds(1.0, 0, 1.0)


@settings(max_examples=30, deadline=None)
@given(backward=st.floats(0, 10), buckets=st.integers(1, 50), each=st.floats(0, 2))
def test_exposed_time_is_that_of_buckets_sent_one_by_one(
    backward: float, buckets: int, each: float
) -> None:
    free = 0.0
    for number in range(1, buckets + 1):
        free = max(free, backward * number / buckets) + each
    assert exposed_seconds(backward, buckets, each) == pytest.approx(free - backward, abs=1e-9)


@pytest.mark.parametrize("ranks", [2, 6, 64, 1000])
def test_expected_maximum_agrees_with_drawing(ranks: int) -> None:
    rng = np.random.default_rng(0)
    drawn = np.exp(0.1 * rng.standard_normal((3000, ranks)))
    measured = drawn.max(axis=1).mean() / drawn.mean()
    assert Lognormal(0.1).slowest(ranks) == pytest.approx(measured, rel=0.01)
    values = rng.gamma(20.0, size=500)
    again = rng.choice(values, size=(3000, ranks)).max(axis=1).mean() / values.mean()
    assert Measured.of(list(values)).slowest(ranks) == pytest.approx(again, rel=0.01)


def test_a_tailed_jitter_agrees_with_drawing_and_keeps_what_it_was_made_from() -> None:
    jitter = Tailed(0.015, 1.5, 27648)
    rng = np.random.default_rng(1)
    u = rng.random((200, 1536))
    drawn = np.vectorize(jitter.quantile)(u, 1 - u)
    assert jitter.slowest(1536) == pytest.approx(drawn.max(axis=1).mean(), rel=0.02)
    assert jitter.slowest(27648) == pytest.approx(1.5, rel=0.01)  # the slowest of Summit
    assert jitter.slowest(1) == 1
    bulk = np.quantile(drawn, [0.0035, 0.9965])
    assert bulk[1] - bulk[0] == pytest.approx(0.08, rel=0.05)  # from whisker to whisker


@pytest.mark.parametrize("jitter", [SPREAD, Lognormal(0.05), Measured.of([1, 1.1, 1.2, 1.6])])
def test_more_ranks_wait_longer(jitter: Jitter) -> None:
    waits = [jitter.slowest(n) for n in (1, 2, 3, 8, 100, 1000, 10_000)]
    assert waits[0] == pytest.approx(1)
    assert waits == sorted(waits)
    assert str(jitter)


JOBS = st.builds(
    Job,
    clips=st.integers(1, 512), clip_seconds=st.floats(1e-4, 1.0), fixed_seconds=st.floats(0, 0.1),
    backward=st.floats(0, 0.9), gradient_bytes=st.floats(1e6, 1e10),
    bucket_bytes=st.floats(1e6, 1e9),
    loader_rate=st.none() | st.floats(1, 1e5), storage_rate=st.none() | st.floats(10, 1e6),
    least_seconds=st.floats(0, 0.05),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(job=JOBS)
def test_efficiency_is_at_most_one_and_never_grows(job: Job) -> None:
    whole = [1, *range(8, 8 * 60, 8)]  # within a machine, a loader is shared by more GPUs
    points = same_batch_per_gpu(job, NETWORK, SPREAD, whole)
    for before, after in pairwise(points):
        assert after.efficiency <= before.efficiency * (1 + 1e-9) <= 1 + 1e-9
    shared = same_global_batch(job, NETWORK, SPREAD, [1, 2, 4, 8, 16, 64, 512], 512)
    for before, after in pairwise(shared):
        assert after.efficiency <= before.efficiency * (1 + 1e-9) <= 1 + 1e-9


@settings(max_examples=60, deadline=None)
@given(job=JOBS, ranks=st.integers(1, 3000), faster=st.floats(1, 50))
def test_a_faster_network_loader_or_disk_never_slows_a_step(
    job: Job, ranks: int, faster: float
) -> None:
    step = predict_step(job, NETWORK, SPREAD, ranks).step
    network = replace(NETWORK, between=Link(1e-5, 1e10 * faster), inside=Link(4e-6, 2e10 * faster))
    assert predict_step(job, network, SPREAD, ranks).step <= step * (1 + 1e-9)
    if job.loader_rate is not None:
        quick = replace(job, loader_rate=job.loader_rate * faster)
        assert predict_step(quick, NETWORK, SPREAD, ranks).step <= step * (1 + 1e-9)


def test_parts_of_a_step_add_up_and_a_slow_loader_sets_the_pace() -> None:
    job = Job(8, 0.01, 0.002, 0.6, 1e8, 25e6, loader_rate=100.0)
    point = predict_step(job, NETWORK, SPREAD, 16)
    assert point.compute == pytest.approx(0.082)
    assert point.compute + point.loader == pytest.approx(8 * 8 / 100)
    assert point.step == pytest.approx(
        point.compute + point.loader + point.straggler + point.exposed
    )
    assert point.rate == pytest.approx(16 * 8 / point.step)


def test_few_clips_take_as_long_as_their_operations_take_to_start() -> None:
    job = Job(64, 0.001, 0.0, 0.6, 1e6, 25e6, least_seconds=0.02)
    shared = same_global_batch(job, NETWORK, SPREAD, [1, 2, 4, 8, 64, 100], 64)
    assert [p.ranks for p in shared] == [1, 2, 4, 8, 64]  # 100 does not divide the batch
    assert [p.compute for p in shared] == pytest.approx([0.064, 0.032, 0.02, 0.02, 0.02])


def test_fewer_clips_have_fewer_micro_batches_and_gradients_the_last_ones_pass_to_hide_in() -> None:
    # 64 clips in 8 micro-batches, an eighth of 0.8 of a step in each backward pass.
    job = Job(64, 0.001, 0.0, 0.1, 1e8, 1e8 / 4, parts=8)
    for clips, parts, backward in ((64, 8, 0.1), (16, 2, 0.4), (12, 2, 0.4), (4, 1, 0.8)):
        fewer = job.with_clips(clips)
        assert (fewer.clips, fewer.parts) == (clips, parts)
        assert fewer.backward == pytest.approx(backward)
    (shared,) = same_global_batch(job, NETWORK, SPREAD, [16], 64)
    seconds, _ = all_reduce(16, 1e8 / 4, NETWORK)
    assert shared.exposed == pytest.approx(exposed_seconds(0.8 * 0.004, 4, seconds))


def test_what_else_travels_hides_behind_its_own_pass_or_behind_nothing() -> None:
    plain = Job(64, 0.001, 0.0, 0.1, 1e8, 1e8 / 4, parts=4)
    seconds, _ = all_reduce(16, 1e8 / 4, NETWORK)
    alone = predict_step(plain, NETWORK, SPREAD, 16).exposed
    for exchange, more in (
        (Exchange("before the last", 1, 0.1, 1e8), 3 * exposed_seconds(0.0064, 4, seconds)),
        (Exchange("each", 2, 0.05, 1e8, 0.5), 8 * exposed_seconds(0.0032, 4, seconds / 2)),
        (Exchange("step", 1, 0.0, 1e8, 0.5), 4 * seconds / 2),
    ):
        job = replace(plain, exchanges=(exchange,))
        assert predict_step(job, NETWORK, SPREAD, 16).exposed == pytest.approx(alone + more)
        assert predict_step(job, NETWORK, SPREAD, 1).exposed == 0


def test_a_shared_update_is_divided_by_the_ranks() -> None:
    job = Job(1, 0.1, 0.01, 0.5, 1e6, 1e6, shared_seconds=0.08)
    assert predict_step(job, NETWORK, SPREAD, 1).compute == pytest.approx(0.19)
    assert predict_step(job, NETWORK, SPREAD, 8).compute == pytest.approx(0.12)


def test_a_step_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="positive"):
        Job(0, 0.1, 0.0, 0.5, 1e6, 1e6)


def test_counts_end_with_the_most() -> None:
    assert counts_to(10) == [1, 2, 4, 8, 10]
    assert counts_to(8) == [1, 2, 4, 8]
    assert counts_to(1) == [1]


def test_measured_files_stand_in_for_assumptions(tmp_path: Path) -> None:
    reduce = tmp_path / "allreduce.json"
    fit = {"alpha_s": 1e-4, "beta_s_per_byte": 2e-9, "backend": "gloo"}
    reduce.write_text(
        json.dumps({"fits": [{"ranks": 2, **fit}, {"ranks": 4, **fit, "alpha_s": 3e-4}]})
    )
    assert read_all_reduce(reduce) == Link(3e-4, pytest.approx(5e8))
    steps = tmp_path / "scaling.json"
    rows = [{"ranks": 1, "compute_step_seconds": [[9.0]]},
            {"ranks": 2, "compute_step_seconds": [[1.0, 1.2], [1.1, 1.3]]}]  # fmt: skip
    steps.write_text(json.dumps({"measured": rows}))
    assert read_steps(steps).samples == (1.0, 1.1, 1.2, 1.3)
    for text in (
        "[]",
        "{}",
        "{",
        '{"fits": []}',
        '{"fits": [1, 2]}',
        '{"fits": 1, "measured": [1]}',
        '{"step_seconds": ["x"]}',
        '{"step_seconds": [0]}',
    ):
        steps.write_text(text)
        with pytest.raises(
            ConfigError, match=str(steps) if text != '{"step_seconds": [0]}' else "two"
        ):
            read_steps(steps)
        with pytest.raises(ConfigError, match=str(steps)):
            read_all_reduce(steps)


def test_1536_gpus_are_predicted_from_one_node_within_a_tenth_of_what_was_published() -> None:
    """14 m 13 s of arXiv 1910.00932; and a node predicts itself."""
    (compared,) = kinetics15()
    assert compared.published == pytest.approx(14 + 13 / 60)
    assert abs(compared.error) < 0.1
    job, network = kinetics_job(Assumptions(), SPREAD)
    assert kinetics_seconds(predict_step(job, network, SPREAD, 6)) == pytest.approx(SINGLE_NODE_S)
    # Without any loss to scale, 256 nodes would take 11.7 minutes.
    ideal = kinetics15(jitter=Lognormal(0.0))[0].predicted
    assert 11.7 < ideal < 12.2
