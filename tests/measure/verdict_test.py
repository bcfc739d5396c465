"""Verdicts from rounds of stages: which stage, how surely; and what arms make of readings."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matinee.data.decode_cost import DecodeCost
from matinee.errors import ConfigError
from matinee.measure.diagnose.readings import Reading, stages_of
from matinee.measure.diagnose.verdict import STAGES, Diagnosis, StepTimes, decide, typical


def noisy(rounds: int, spread: float, seed: int = 0, **stages: float):
    rng = np.random.default_rng(seed)
    return [
        {name: value * (1 + spread * rng.standard_normal()) for name, value in stages.items()}
        for _ in range(rounds)
    ]


def test_a_stage_far_ahead_is_certain():
    verdict = decide(noisy(8, 0.05, decode=0.5, compute=0.2, optimizer=0.02))
    assert (verdict.stage, verdict.runner_up) == ("decode", "compute")
    assert verdict.is_certain
    assert verdict.share == pytest.approx(0.5 / 0.72, abs=0.05)
    assert verdict.margin_low > 0
    assert str(verdict).startswith("decode: ")


def test_two_stages_within_noise_are_told_as_two():
    verdict = decide(noisy(8, 0.3, decode=0.5, compute=0.49))
    assert not verdict.is_certain
    assert verdict.margin_low < 0 < verdict.margin_high
    assert "between" in str(verdict)
    assert "decode" in str(verdict)
    assert "compute" in str(verdict)


def test_few_rounds_are_never_certain():
    """Of two equal stages one is ahead in all n rounds with probability 2 · 2⁻ⁿ."""
    for rounds in (1, 2, 3):
        verdict = decide([{"decode": 1.0, "compute": 0.1}] * rounds)
        assert verdict.certainty == 1 - 0.5**rounds
        assert not verdict.is_certain
    assert decide([{"decode": 1.0, "compute": 0.1}] * 4).is_certain


def test_equal_stages_are_called_certain_about_as_rarely_as_certainty_says():
    """The bootstrap's promise, checked by simulation: truth is a draw, so certainty misleads."""
    certain = sum(
        decide(noisy(10, 0.2, seed, decode=0.5, compute=0.5)).is_certain for seed in range(100)
    )
    assert certain / 100 < 0.35  # either stage may seem ahead at 90 %: 20 % expected


seconds = st.floats(-0.2, 5, allow_nan=False)


@given(st.lists(st.fixed_dictionaries(dict.fromkeys(STAGES, seconds)), min_size=1, max_size=6))
def test_typical_stages_are_never_negative_and_add_up_to_the_median_step(samples):
    shown = typical(samples)
    assert all(value >= 0 for value in shown.values())
    step = float(np.median([sum(sample.values()) for sample in samples]))
    if step > 0 and sum(shown.values()) > 0:
        assert sum(shown.values()) == pytest.approx(step)
    verdict = decide(samples)
    assert verdict.share == pytest.approx(
        max(shown.values()) / (sum(shown.values()) or 1.0), abs=1e-9
    )
    assert 0 <= verdict.certainty <= 1


def test_the_margin_lies_within_its_interval():
    verdict = decide(noisy(9, 0.4, 3, decode=0.5, compute=0.2, optimizer=0.1, other=-0.01))
    assert verdict.margin_low <= verdict.margin <= verdict.margin_high
    assert verdict.margin_low < verdict.margin_high


def test_nothing_to_decide_is_refused():
    for samples, what in (
        ([], "no round"),
        ([{"coffee": 1.0}], "coffee"),
        ([{"decode": math.nan}], "finite"),
        ([{}], "without any stage"),
    ):
        with pytest.raises(ConfigError, match=what):
            decide(samples)


def reading(step_s: float, read=0.0, busy=0.0, idle=0.0, steps=4, **spans: float) -> Reading:
    total = {name: value * steps for name, value in spans.items()}
    return Reading((step_s,) * steps, total, DecodeCost(clips=8, read_s=read, busy_s=busy), idle)


def test_stages_of_a_round_add_up_to_its_whole_step():
    """Written out by hand: 100 ms of which 70 on data that are there."""
    own = {"forward": 0.02, "backward": 0.04, "optimizer": 0.008, "comm": 0.0001}
    arms = {
        "whole": [reading(0.100, read=3, busy=4, data_wait=0.020, h2d=0.006, **own)],
        "synthetic": [reading(0.070, data_wait=0.0, **own)],
        "loader": [reading(0.050)],
    }
    stages = stages_of(arms)
    assert stages == pytest.approx(
        {"storage": 0.015, "decode": 0.009, "h2d": 0.006, "compute": 0.06, "optimizer": 0.008,
         "other": 0.002}
    )  # fmt: skip
    assert sum(stages.values()) == pytest.approx(0.100)


def test_ranks_are_divided_into_own_work_stragglers_and_communication():
    def alone(step_s):
        return reading(step_s, forward=0.3 * step_s, backward=0.6 * step_s, optimizer=0.1 * step_s)

    arms = {
        "whole": [reading(0.200, busy=1, data_wait=w) for w in (0.0, 0.02, 0.0, 0.0)],
        "synthetic": [reading(0.180)] * 4,
        "alone": [alone(s) for s in (0.10, 0.11, 0.14, 0.10)],
        "loader": [reading(0.05)] * 4,
    }
    stages = stages_of(arms)
    assert stages["communication"] == pytest.approx(0.180 - 0.14)
    assert stages["stragglers"] == pytest.approx(0.14 - 0.10)  # of four, the second
    assert stages["compute"] == pytest.approx(0.09)
    assert stages["decode"] == pytest.approx(0.02)
    assert sum(stages.values()) == pytest.approx(0.200)


def test_without_an_arm_of_its_own_ranks_have_no_stragglers():
    arms = {
        "whole": [reading(0.2), reading(0.2)],
        "synthetic": [reading(0.18, forward=0.1, comm=0.05), reading(0.181, forward=0.1)],
    }
    stages = stages_of(arms)
    assert stages["stragglers"] == 0
    assert stages["communication"] == pytest.approx(0.051)
    assert sum(stages.values()) == pytest.approx(0.2)


def test_loading_of_data_in_memory_is_all_h2d():
    arms = {"whole": [reading(0.12, data_wait=0.03)], "synthetic": [reading(0.08)]}
    stages = stages_of(arms, decoded=False)
    assert (stages["storage"], stages["decode"]) == (0, 0)
    assert stages["h2d"] == pytest.approx(0.04)


def test_a_diagnosis_is_strict_json():
    samples = noisy(5, 0.1, decode=0.5, compute=0.2)
    found = Diagnosis.of("a run", StepTimes.of([0.7, 0.71, 0.9], 8), samples)
    read = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert read["verdict"]["stage"] == "decode"
    assert read["step"]["p50"] == 0.71
    assert read["step"]["clips_per_s"] == pytest.approx(8 / 0.71)
