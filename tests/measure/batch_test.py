"""The largest micro-batch that fits, against trying all of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matinee.errors import ConfigError
from matinee.measure.plan import batch as batch_module
from matinee.measure.plan.batch import BatchPlan, fit_batch
from matinee.measure.plan.memory import Memory, predict_memory
from matinee.recipes import RECIPES, tiny
from matinee.training.config import TrainConfig

RECOMPUTED = {0: 1.0, 2: 0.6, 1: 0.25}
"""Part of a clip's bytes that stays, in the made-up memory below."""


def config_of(recipe: str, batch: int, **optim) -> TrainConfig:
    config = tiny(RECIPES[recipe]("none", "none"))
    return replace(config, optim=replace(config.optim, batch_size=batch, accumulate=1, **optim))


class MadeUp:
    """Memory by a formula: fixed bytes, and convex ones of the micro-batch; counts its calls."""

    def __init__(self, fixed: int, clip: int, bend: int = 10**9, steeper: int = 0) -> None:
        self.fixed, self.clip, self.bend, self.steeper = fixed, clip, bend, steeper
        self.calls: list[tuple[int, int]] = []

    def total(self, config: TrainConfig, clips: int, world: int) -> int:
        parts = math.ceil(config.optim.batch_size / (clips * world))
        shared = {"ddp": 1.0, "zero1": 0.6, "fsdp": 3 / (world + 2)}[config.parallel.strategy]
        fixed = self.fixed * shared * (1.2 if parts > 1 else 1.0)
        each = self.clip * RECOMPUTED[config.speed.recompute]
        return round(fixed + each * clips + self.steeper * max(0, clips - self.bend))

    def __call__(self, config: TrainConfig, *, micro_batch: int, world: int, **_) -> Memory:
        self.calls.append((config.speed.recompute, micro_batch))
        total = self.total(config, micro_batch, world)
        return Memory(
            0, 0, 0, 0, total, 0, 0, 0, 0, total=total, moment="forward",
            saved=round(self.clip * RECOMPUTED[config.speed.recompute] * micro_batch),
        )  # fmt: skip


@pytest.fixture
def made_up(monkeypatch):
    def use(*args, **kwargs) -> MadeUp:
        memory = MadeUp(*args, **kwargs)
        monkeypatch.setattr(batch_module, "predict_memory", memory)
        return memory

    return use


def largest_by_trying(memory: MadeUp, config: TrainConfig, limit: int, world: int) -> int | None:
    share = config.optim.batch_size // world
    fits = [
        clips for clips in range(1, share + 1)
        if share % clips == 0 and memory.total(config, clips, world) <= limit
    ]  # fmt: skip
    return max(fits, default=None)


@given(
    batch=st.sampled_from([1, 2, 7, 12, 60, 64, 96, 360]), world=st.sampled_from([1, 2, 4]),
    fixed=st.integers(0, 500), clip=st.integers(1, 100), bend=st.integers(1, 100),
    steeper=st.integers(0, 100), limit=st.integers(1, 5000),
)  # fmt: skip
def test_the_plan_is_the_largest_that_fits(batch, world, fixed, clip, bend, steeper, limit):
    memory = MadeUp(fixed, clip, bend, steeper)
    config = config_of("tsm", batch * world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_module, "predict_memory", memory)
        # Without recomputing, as far as that is enough.
        expected = largest_by_trying(memory, config, limit, world)
        if expected is None:
            return
        plan = fit_batch(config, limit, world)
    assert (plan.micro_batch, plan.recompute, plan.strategy) == (expected, 0, "ddp")
    assert plan.micro_batch * plan.parts * world == config.optim.batch_size
    assert plan.memory.total <= limit


def test_few_predictions_are_needed(made_up):
    memory = made_up(100, 10)
    plan = fit_batch(config_of("tsm", 1024), 1000)
    assert plan.micro_batch == 64
    assert memory.calls == [(0, 1), (0, 2), (0, 64)]
    memory = made_up(100, 10)
    assert fit_batch(config_of("tsm", 8), 1000).parts == 1
    assert len(memory.calls) <= 3


def test_blocks_are_recomputed_when_a_clip_does_not_fit_otherwise(made_up):
    made_up(100, 1000)
    plan = fit_batch(config_of("tsm", 64), 800)
    assert (plan.recompute, plan.micro_batch, plan.anew) == (2, 1, 0.5)
    plan = fit_batch(config_of("tsm", 64), 500)
    assert (plan.recompute, plan.micro_batch, plan.anew) == (1, 1, 1)
    assert "every block computed anew" in plan.reason


def test_a_micro_batch_that_is_thought_too_small_is_made_larger_by_recomputing(made_up):
    made_up(100, 100)
    config = config_of("tsm", 64)
    assert fit_batch(config, 600).micro_batch == 4
    plan = fit_batch(config, 600, least=8)
    assert (plan.micro_batch, plan.recompute) == (8, 2)
    assert fit_batch(config, 600, least=16).recompute == 1


def test_contrastive_training_rather_recomputes_every_second_block_than_embeds_twice(made_up):
    made_up(0, 10)
    config = config_of("clip_ego4d", 64)
    whole = fit_batch(config, 640)
    assert (whole.parts, whole.recompute, whole.anew) == (1, 0, 0)
    half = fit_batch(config, 400)
    assert (half.parts, half.recompute, half.anew) == (1, 2, 0.5)
    parts = fit_batch(config, 100)
    assert (parts.parts, parts.recompute, parts.anew) == (8, 0, 1)
    assert "features are computed twice" in parts.reason


def test_ranks_divide_more_only_when_they_must(made_up):
    made_up(1000, 10)
    config = config_of("tsm", 64)
    assert fit_batch(config, 1500, 4).strategy == "ddp"
    assert fit_batch(config, 900, 4).strategy == "zero1"
    assert fit_batch(config, 620, 4).strategy == "fsdp"
    with pytest.raises(ConfigError, match="do not hold a step"):
        fit_batch(config, 590, 4, precision="fp16")  # which FSDP cannot


def test_what_does_not_fit_is_refused_with_what_it_takes(made_up):
    made_up(3 * 2**30, 2**30)
    with pytest.raises(ConfigError, match=r"2\.00 GiB do not hold .* takes 3\.25 GiB, every block"):
        fit_batch(config_of("tsm", 1), 2 * 2**30)


def test_mixed_clips_are_cut_in_pairs(made_up):
    made_up(0, 100)
    config = config_of("cls_epic100", 24)  # Mixup and CutMix
    assert fit_batch(config, 350).micro_batch == 2


def test_the_stage_with_the_largest_batch_must_fit_too(made_up):
    memory = made_up(0, 10)
    config = config_of("tsm", 16)
    staged = replace(
        config, optim=replace(config.optim, epochs=10),
        speed=replace(config.speed, stages=("0.5=2x32@64",)),
    )  # fmt: skip
    assert fit_batch(config, 100).micro_batch == 8
    plan = fit_batch(staged, 100)
    assert plan.micro_batch == 2  # 8 of the first stage
    assert (0, 8) in memory.calls


def test_bad_questions_are_refused(made_up):
    made_up(0, 1)
    config = config_of("tsm", 10)
    with pytest.raises(ConfigError, match="batch-size 10 cannot be shared by 4 ranks"):
        fit_batch(config, 100, 4)
    with pytest.raises(ConfigError, match="each at least 1"):
        fit_batch(config, 0)
    simulated = replace(config, parallel=replace(config.parallel, simulate_world=5))
    with pytest.raises(ConfigError, match="simulate-world 5 fixes the micro-batch"):
        fit_batch(simulated, 100)


def test_a_real_network_s_plan_fits_and_the_next_larger_one_does_not():
    config = config_of("tsm", 24)
    given = {"device": "cpu", "precision": "fp32", "classes": 7}
    memories = {c: predict_memory(config, micro_batch=c, **given).total for c in (4, 6)}
    told: list[str] = []
    plan = fit_batch(config, memories[6] - 1, on_try=told.append, **given)
    assert isinstance(plan, BatchPlan)
    assert (plan.micro_batch, plan.parts, plan.memory.total) == (4, 6, memories[4])
    assert told[0] == "1 clips at a time"
    assert plan.apply(config).optim.accumulate == 6
