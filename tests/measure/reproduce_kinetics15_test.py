"""The reproduction of "Training Kinetics in 15 minutes", at a size of seconds."""

import math
from dataclasses import replace

import pytest
import timm

from matinee.errors import ConfigError
from matinee.measure.arms import Spread
from matinee.measure.bench import networks
from matinee.measure.reproduce.kinetics15 import Options, accuracy, predicted, ranks, reproduce, run
from matinee.measure.reproduce.kinetics15.accuracy import (
    Run,
    breaking_point,
    check_worlds,
    world_config,
)
from matinee.measure.reproduce.kinetics15.published import TARGETS, published_efficiency
from matinee.measure.reproduce.kinetics15.speed import NETWORKS, measure_speed, speed_part
from matinee.measure.result import write_result
from matinee.models.measure import model_cost


def runs(top1_by_world):
    return [
        Run(world, seed, 8 * world, 0.05 * world, 10, top1)
        for world, values in top1_by_world.items()
        for seed, top1 in enumerate(values)
    ]


@pytest.fixture
def tiny(monkeypatch):
    """Networks of milliseconds under the names of the large ones."""
    names = {
        "tsm": "test_resnet:shift", "tsn": "test_resnet:frames", "i3d_333": "test_resnet:3x3x3",
        "i3d_311": "test_efficientnet:3x1x1",
    }  # fmt: skip
    monkeypatch.setattr(networks, "NAMES", names)


@pytest.fixture(scope="module")
def prediction():
    """The part of the page and its numbers; it takes seconds."""
    return predicted.predicted_part(lambda part, note: None)


@pytest.mark.parametrize(
    ("top1", "broken"),
    [
        ({1: [0.9, 0.8], 4: [0.9, 0.9], 16: [0.7, 0.5], 32: [0.2, 0.1]}, 16),
        ({1: [0.9], 4: [0.6], 16: [0.88]}, None),  # a dip that larger worlds do not share
        ({1: [0.9], 4: [0.86], 32: [0.3]}, 32),
        ({1: [0.9]}, None),
        ({1: [0.6], 2: [0.54], 4: [0.3]}, 2),
        ({1: [0.45], 4: [0.1]}, None),  # one rank did not learn: nothing to lose
    ],
)
def test_accuracy_breaks_where_it_stays_below_one_ranks(top1, broken):
    assert breaking_point(runs(top1)) == broken


def test_simulated_ranks_change_the_batch_and_the_rate_and_nothing_else():
    """Linear scaling: as many times the batch, the peak rate for it, micro-batches of 8."""
    one, many = (world_config("p", "o", world=w, seed=3, epochs=4) for w in (1, 16))
    assert many.optim.batch_size == 16 * one.optim.batch_size == 128
    assert one.optim.lr == many.optim.lr and many.optim.base_batch == 8
    assert many.optim.lr_scaling == "linear" and many.optim.warmup_epochs == 1.25
    assert many.optim.batch_size // many.parallel.simulate_world == 8
    same = replace(
        many, optim=replace(many.optim, batch_size=8),
        parallel=replace(many.parallel, simulate_world=1),
    )  # fmt: skip
    assert same == one


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"size": 16}, "--size 16: at least 32"),
        ({"batch": 0}, "--batch 0: at least 1"),
        ({"seeds": 0}, "--seeds 0: at least 1"),
        ({"ranks": (2, 2)}, "--ranks 2 2: different numbers"),
        ({"worlds": ()}, "--worlds : different numbers"),
        ({"worlds": (0, 4)}, "--worlds 0 4: different"),
    ],
)
def test_options_that_cannot_be_used_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        Options(**given)


def test_more_simulated_ranks_than_clips_are_refused_before_anything_is_measured():
    scale = Options(worlds=(1, 64)).scale
    with pytest.raises(ConfigError, match=r"--worlds 64: .* the 256 clips .* at most 32"):
        check_worlds(scale)
    with pytest.raises(ConfigError, match="--worlds 64"):
        reproduce(Options(worlds=(64,)), on_step=lambda *_: pytest.fail("began"))


def test_a_clip_costs_what_was_published():
    """ResNet-50 with shift on 8 frames of 224²: 32.88 GMAC in mmaction2's table, 97 MB of
    gradients in the paper.
    """
    model = networks.build("tsm", frames=8, size=224)
    assert model_cost(model, 224).gmac == pytest.approx(32.88, rel=0.01)
    assert networks.gradient_bytes(model) == pytest.approx(97e6, rel=0.005)


def test_ratios_are_within_a_round_and_tsn_is_the_bound(tiny):
    scale = replace(Options(quick=True).scale, size=32, rounds=3)
    found = measure_speed(scale, lambda part, note: None)
    assert found.costs["tsm"] == found.costs["tsn"]
    assert found.costs["i3d_333"].flops > found.costs["tsm"].flops
    part, data = speed_part(found)
    assert [row[0] for row in part.tables[0].rows] == list(NETWORKS.values())
    for row in data["measured"]:
        assert row["wanted"] == TARGETS.get(row["network"])
        for key, base in (("tsm_is_faster_by", "tsm"), ("bound", "tsn")):
            steps = found.turns.values[f"{base} {row['precision']}"]
            ratios = sorted(a / b for a, b in zip(row["seconds"], steps, strict=True))
            assert row[key]["median"] == pytest.approx(ratios[1])


def test_the_predicted_curve_starts_at_the_published_node(prediction):
    """49 h 55 m, exactly: it is what goes in. All else is slower than as many nodes."""
    part, data = prediction
    assert {len(curve) for curve in data["curves"].values()} == {len(predicted.COUNTS)}
    tsm = {p["ranks"]: p for p in data["curves"]["tsm"]}
    assert tsm[6]["seconds"] == pytest.approx(49 * 3600 + 55 * 60, rel=0.001)
    assert tsm[1536]["seconds"] == pytest.approx(14 * 60 + 13, rel=0.1)
    for name, curve in data["curves"].items():
        efficiency = [p["efficiency_against_node"] for p in curve]
        assert efficiency[0] == 1 and efficiency == sorted(efficiency, reverse=True)
        if name != "tsm":
            assert data["clip_seconds_over_tsm"][name] > 1
            assert all(p["seconds"] > tsm[p["ranks"]]["seconds"] for p in curve)
    assert set(part.plots) == {"hours", "efficiency"}
    assert math.isclose(published_efficiency(), 0.823, abs_tol=0.001)


def test_the_whole_is_one_page_with_every_part(tiny, prediction, monkeypatch, tmp_path):
    """Tiny networks, real training: 32 clips, one epoch, one and four simulated ranks."""
    monkeypatch.setattr(ranks, "SMALL", {"tsm": "test_resnet:shift"})
    monkeypatch.setattr(run, "predicted_part", lambda tell: prediction)
    scale = replace(
        Options(quick=True).scale, size=32, ranks=(1, 2), turns=1, worlds=(1, 4), epochs=1, videos=1
    )
    monkeypatch.setattr(Options, "scale", scale)
    told = []
    result = reproduce(Options(), on_step=lambda *step: told.append(step))
    assert [part.name for part in result.parts] == [
        "summary", "networks", "ranks", "predicted", "accuracy",
    ]  # fmt: skip
    counts = [done for done, _, _ in told]
    assert counts == sorted(counts) and told[-1][:2] == (100, 100)
    assert {total for _, total, _ in told} == {100} and all(note for _, _, note in told)
    made = {r["world"]: r for r in result.data["accuracy"]["runs"]}
    assert made[1]["steps"] == 4 and made[4]["steps"] == 1 and made[4]["batch"] == 32
    assert all(0 <= r["top1"] <= 1 for r in made.values())
    assert [p["ranks"] for p in result.data["ranks"]["tsm"]["measured"]] == [1, 2]
    page = write_result(result, tmp_path).read_text()
    for part in result.parts:
        for plot in part.plots:
            assert (tmp_path / f"kinetics15-{part.name}-{plot}.svg").stat().st_size > 1000
    assert page.count("<svg") == sum(len(part.plots) for part in result.parts) == 5


def test_the_summary_says_when_the_bound_itself_is_below_what_is_wanted():
    faster, bound = Spread.of([1.7] * 3), Spread.of([1.5] * 3)
    assert run._verdict(faster, bound, 1.6) == "yes"
    assert run._verdict(bound, bound, 1.6) == "no; TSN, whose shift is none, is 1.50× as fast"
    assert run._verdict(Spread.of([1.7]), bound, 1.6) == "no verdict from 1 of 3 rounds"


def test_the_small_networks_exist():
    assert all(timm.is_model(name.partition(":")[0]) for name in ranks.SMALL.values())
    assert (
        accuracy.world_config("p", "o", world=1, seed=0, epochs=1).model.backbone == "test_resnet"
    )
