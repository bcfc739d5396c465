"""Ranks that take turns in groups, and what scaling and all-reduces tell of them."""

import json

import pytest
import torch

from matinee.errors import ConfigError, MatineeError
from matinee.measure.arms import Turns
from matinee.measure.bench import allreduce, scaling
from matinee.measure.bench.networks import Clips
from matinee.measure.bench.ranks import RankGroup, check_ranks
from matinee.measure.result import write_result

CPU = torch.device("cpu")


def quiet(*_):
    pass


def test_groups_of_ranks_take_turns_and_say_who_failed():
    """1 and 2 ranks by turns; an error arrives as it was, a death with its signal."""
    with RankGroup((1, 2), "bench_parts:Adds", (10,), device=CPU, threads=1) as group:
        for _ in range(2):
            assert group(1, "add") == [(0, 1, 10.0, 1)]
            assert group(2, "add") == [(0, 2, 21.0, 1), (1, 2, 21.0, 1)]
        with pytest.raises(ConfigError, match="rank 1 will not"):
            group(2, "fail")
        assert group(1, "add") == [(0, 1, 10.0, 1)]
        with pytest.raises(MatineeError, match=r"rank 1 of 2 ended.*SIGKILL"):
            group(2, "die")


@pytest.mark.parametrize(
    ("ranks", "least", "words"),
    [((), 1, "different numbers"), ((2, 2), 1, "different numbers"), ((1, 2), 2, "at least 2")],
)
def test_numbers_of_ranks_that_make_no_sense_are_refused(ranks, least, words):
    with pytest.raises(ConfigError, match=words):
        check_ranks(ranks, CPU, least=least)


def test_more_ranks_than_gpus_are_refused():
    with pytest.raises(ConfigError, match="GPUs, and each rank takes one"):
        check_ranks((10_000,), torch.device("cuda"))


def test_allreduce_measures_all_sizes_and_writes_what_a_plan_reads(tmp_path):
    options = allreduce.Options(out=tmp_path, ranks=(2,), kib=(64, 1), rounds=1, device="cpu")
    result = allreduce.measure(options, on_step=quiet)
    write_result(result, tmp_path)
    data = json.loads((tmp_path / "allreduce.json").read_text())
    assert data["backend"] == "gloo" and [m["bytes"] for m in data["measured"]] == [1024, 65536]
    assert all(m["seconds"]["median"] > 0 and m["ranks"] == 2 for m in data["measured"])
    (fit,) = data["fits"]
    assert fit["crowded"] == (data["cores"] < 2)
    assert fit["ranks"] == 2 and fit["backend"] == "gloo"
    assert fit["alpha_s"] == pytest.approx(fit["latency_s"] / 2)
    assert fit["beta_s_per_byte"] == pytest.approx(fit["s_per_byte"])
    # Two sizes determine the line, unless one of its terms would be negative.
    if fit["alpha_s"] > 0 and fit["beta_s_per_byte"] > 0:
        for m in data["measured"]:
            fitted = fit["latency_s"] + m["bytes"] * fit["s_per_byte"]
            assert fitted == pytest.approx(m["seconds"]["median"])
    assert (tmp_path / "allreduce-allreduce-time.png").stat().st_size > 5000


def scaled(cores):
    """1, 2 and 4 ranks with times that are easy to reckon with."""
    turns = Turns({
        "1 apart": [1.0, 2.0], "2 joined": [1.25, 2.5], "2 apart": [1.0, 2.0],
        "4 joined": [4.0, 8.0], "4 apart": [3.0, 6.0],
    })  # fmt: skip
    steps = {"1 apart": [[1.0]], "2 apart": [[1.0, 3.0], [2.0, 2.0]], "2 joined": [[1.0], [1.0]]}
    return scaling.Scaled(
        scaling.Options(), "resnet18:shift", Clips(3, 8, 64), CPU, (1, 2, 4), cores, 100, turns,
        steps,
    )  # fmt: skip


def test_speed_efficiency_and_communication_follow_from_step_times():
    found = scaled(cores=2)
    assert found.speed(2).median == pytest.approx((6 / 1.25 + 6 / 2.5) / 2)
    assert found.efficiency(2).median == pytest.approx(0.8)
    assert found.core_efficiency(2).median == pytest.approx(0.8)
    assert found.efficiency(4).median == pytest.approx(0.25)
    assert found.core_efficiency(4).median == pytest.approx(0.5)  # of twice one rank's speed
    assert found.communication(2).median == pytest.approx(0.2)
    assert found.communication(4).median == pytest.approx(0.25)
    # The slowest rank's steps take 2 and 3 s, the mean is 2 s.
    assert found.waiting(2) == pytest.approx(0.25)


def test_with_a_core_for_each_rank_both_efficiencies_agree():
    found = scaled(cores=4)
    assert not found.crowded(4) and scaled(cores=2).crowded(4)
    assert found.core_efficiency(4) == found.efficiency(4)


def test_scaling_trains_real_ranks_and_keeps_every_step(tmp_path):
    options = scaling.Options(
        out=tmp_path, ranks=(2,), network="resnet10t:shift", frames=2, size=32, steps=2, rounds=2,
        device="cpu",
    )  # fmt: skip
    told = []
    result = scaling.measure(options, on_step=lambda done, total, note: told.append((done, total)))
    write_result(result, tmp_path)
    data = json.loads((tmp_path / "scaling.json").read_text())
    assert told[-1] == (9, 9)  # (1 + 2 rounds) of one rank, two joined, two apart
    one, two = data["measured"]
    assert (one["ranks"], two["ranks"]) == (1, 2) and one["communication_share"] is None
    for row, ranks in ((one, 1), (two, 2)):
        assert len(row["compute_step_seconds"]) == ranks
        assert all(len(steps) == 4 and min(steps) > 0 for steps in row["compute_step_seconds"])
    parameters = data["gradient_bytes"] / 4
    assert parameters == int(parameters) and parameters > 4e6
    assert (tmp_path / "scaling-scaling-speed.png").stat().st_size > 5000
