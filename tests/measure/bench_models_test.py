"""Speed and cost of networks: what is written follows from what was measured."""

import json

import pytest
import torch

from matinee.measure.bench import models
from matinee.measure.bench.networks import Clips, TrainingStep, build, gradient_bytes
from matinee.measure.result import Result, write_result

NETWORKS = ("resnet10t:frames", "resnet10t:3x3x3")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    out = tmp_path_factory.mktemp("models")
    options = models.Options(
        out=out, networks=NETWORKS, frames=2, size=32, batch=2, rounds=2, device="cpu"
    )
    result = models.measure(options, on_step=lambda *_: None)
    write_result(result, out)
    assert (out / "models-training-speed.png").stat().st_size > 3000
    return json.loads((out / "models.json").read_text())


def test_a_result_says_what_it_is_and_keeps_what_was_measured(data, tmp_path):
    assert data["benchmark"] == "models" and data["machine"]["cores"] >= 1
    for key in ("benchmark", "machine"):
        with pytest.raises(ValueError, match=f"'{key}'.*added to every result"):
            write_result(Result("models", "", "", [], {key: 1}), tmp_path / "other")
    assert not list(tmp_path.iterdir())


def test_every_network_precision_and_mode_is_measured(data):
    rows = {(m["network"], m["precision"], m["mode"]): m for m in data["measured"]}
    assert len(rows) == len(data["measured"]) == 8
    for row in rows.values():
        assert len(row["seconds"]) == 2
        speeds = sorted(2 / s for s in row["seconds"])  # two clips a step
        assert row["clips_per_s"]["median"] == pytest.approx(sum(speeds) / 2)


def test_ratios_are_taken_within_a_round(data):
    assert data["base"] == NETWORKS[0]
    rows = {(m["network"], m["precision"], m["mode"]): m for m in data["measured"]}
    base, other = (rows[name, "fp32", "train"] for name in NETWORKS)
    ratios = [o / b for o, b in zip(other["seconds"], base["seconds"], strict=True)]
    assert other["base_is_faster_by"]["median"] == pytest.approx(sum(ratios) / 2)
    assert base["base_is_faster_by"]["median"] == 1


def test_costs_are_those_of_the_networks(data):
    """Inflation adds parameters; gradients are four bytes of each."""
    frames, inflated = (data["cost_of_a_clip"][name] for name in NETWORKS)
    assert inflated["parameters"] > frames["parameters"]
    for name in NETWORKS:
        cost = data["cost_of_a_clip"][name]
        own = build(name, frames=2, size=32)
        assert cost["gradient_bytes"] == gradient_bytes(own) == 4 * cost["parameters"]
        assert cost["gflops"] == pytest.approx(2 * cost["gmac"])


def test_a_training_step_trains():
    """Weights move, and the loss on the same clips falls."""
    model = build(NETWORKS[0], frames=2, size=32)
    step = TrainingStep(model, Clips(2, 2, 32), torch.device("cpu"))
    before = [p.detach().clone() for p in model.parameters()]
    assert step() > 0
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
