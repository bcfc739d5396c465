"""Work of a step, counted, and how long it takes on a card."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from matinee.errors import ConfigError
from matinee.measure.plan.assumptions import Assumptions
from matinee.measure.plan.cards import read_cards
from matinee.measure.plan.published import AVION_PUBLISHED, avion_hours, avion_plan
from matinee.measure.plan.step_time import compute_seconds, update_bytes
from matinee.measure.plan.whole import plan_run, sensitivity
from matinee.measure.plan.work import count_work
from matinee.models.build import build_video_model
from matinee.models.config import Frames, Joint
from matinee.models.measure import model_cost
from matinee.recipes import RECIPES
from matinee.tasks.config import ClipTextConfig, ContrastiveConfig
from matinee.training.config import TrainConfig

TAKE = Assumptions()
CARDS = read_cards()


def small(name: str = "tsm", backbone: str = "resnet18") -> TrainConfig:
    config = RECIPES[name]("", "")
    model = replace(config.model, backbone=backbone, pretrained="none", partial_bn=False)
    if name == "clip_ego4d":
        text = ClipTextConfig(width=64, heads=2, layers=2)
        config = replace(config, task=ContrastiveConfig(text=text, embed_dim=32))
    return replace(config, model=model, clip=replace(config.clip, frames=4, size=64))


def test_flops_are_those_of_pytorchs_counter_on_a_real_step() -> None:
    """On real tensors; resnet18 has no groups, which PyTorch's counter takes for more."""
    config = small()
    network, _, _ = build_video_model(config.model, num_classes=5, frames=4, size=64)
    with FlopCounterMode(display=False) as counter:
        network.train()(torch.zeros(2, 3, 4, 64, 64)).sum().backward()
    work = count_work(config, micro_batch=2, precision="fp32", classes=5)
    assert work.flops() == pytest.approx(counter.get_total_flops(), rel=1e-6)
    cost = model_cost(network, 64)
    assert work.forward_flops() == pytest.approx(2 * cost.flops, rel=1e-6)
    assert (work.parameters, work.gradient_bytes) == (cost.parameters, 4 * cost.parameters)


def test_traffic_is_that_of_operations_read_and_written() -> None:
    """By hand, of a picture through a convolution: input, weight, output, once each."""
    config = replace(small(), clip=replace(small().clip, frames=1))
    config = replace(config, model=replace(config.model, temporal=Frames()))
    work = count_work(config, micro_batch=2, precision="fp32", classes=5)
    first = [op for op in work.forward if op.name == "convolution" and
             op.flops == 2 * 2 * 64 * 32 * 32 * 3 * 49]  # fmt: skip
    assert [op.traffic for op in first] == [4 * (2 * 3 * 64 * 64 + 64 * 3 * 49 + 2 * 64 * 32 * 32)]


def test_work_of_pictures_grows_with_the_batch_and_weights_do_not() -> None:
    one, four = (count_work(small(), micro_batch=n, precision="bf16", classes=5) for n in (1, 4))
    assert four.flops() == pytest.approx(4 * one.flops())
    assert one.traffic() < four.traffic() < 4 * one.traffic()
    assert four.kernels() == pytest.approx(one.kernels(), abs=2)
    half = {op.half for op in four.forward if op.kind == "product"}
    assert half == {True}


def test_recomputing_adds_a_forward_pass_of_the_blocks() -> None:
    config = small("clip_ego4d", "vit_tiny_patch16_224")
    config = replace(config, model=replace(config.model, temporal=Joint()))
    kept = count_work(
        replace(config, speed=replace(config.speed, recompute=0)),
        micro_batch=2, precision="bf16", classes=1,
    )  # fmt: skip
    anew = count_work(config, micro_batch=2, precision="bf16", classes=1)
    extra = (anew.flops() - kept.flops()) / kept.forward_flops()
    # All but the last product of each block (a third of it): nothing behind it was kept.
    assert 0.6 < extra < 1.0
    attention = [op for op in kept.forward if op.kind == "attention"]
    assert attention and all(op.half for op in attention)
    backward = [op for op in kept.backward if op.kind == "attention"]
    assert sum(op.flops for op in backward) == pytest.approx(
        2.5 * sum(op.flops for op in attention)
    )


def test_a_step_is_the_roofline_of_its_operations() -> None:
    config, card = small(), CARDS["A100-40GB"]
    work = count_work(config, micro_batch=64, precision="bf16", classes=5)
    seconds = compute_seconds(work, config, card, "bf16", replace(TAKE, busy=1.0), 1)
    by_hand = 0.0
    for part in (work.forward, work.backward):
        for op, number in part.items():
            rate = 0.7 * (312e12 if op.half else 156e12)
            by_hand += number * max(op.flops / rate, op.traffic / (0.58 * 1555e9))
    assert seconds.passes >= by_hand * (1 - 1e-9)
    assert seconds.products + seconds.attention + seconds.elementwise == pytest.approx(by_hand)
    idle = compute_seconds(work, config, card, "bf16", replace(TAKE, busy=0.5), 1)
    assert idle.batches == pytest.approx(2 * seconds.batches)


def test_small_batches_take_what_their_operations_take_to_start() -> None:
    config, card = small(), CARDS["H200"]
    work = count_work(config, micro_batch=1, precision="bf16", classes=5)
    seconds = compute_seconds(work, config, card, "bf16", TAKE, 1)
    assert seconds.passes == pytest.approx(work.kernels() * 6e-6)


def test_faster_cards_and_rates_never_take_longer() -> None:
    config = small()
    work = count_work(config, micro_batch=32, precision="fp16", classes=5)
    slow = compute_seconds(work, config, CARDS["A5000"], "fp16", TAKE, 2).total
    assert compute_seconds(work, config, CARDS["A100-40GB"], "fp16", TAKE, 2).total <= slow
    for name in ("attention_efficiency", "bandwidth_efficiency", "matmul_efficiency", "busy"):
        better = replace(TAKE, **{name: 1.0})
        assert compute_seconds(work, config, CARDS["A5000"], "fp16", better, 2).total <= slow
    assert compute_seconds(work, config, CARDS["A5000"], "fp16", TAKE, 1).total < slow


def test_a_feature_cache_passes_forwards_twice() -> None:
    config = small("clip_ego4d", "vit_tiny_patch16_224")
    work = count_work(config, micro_batch=64, precision="bf16", classes=1)
    take = replace(TAKE, kernel_us=0.0, busy=1.0)
    one, two = (
        compute_seconds(work, config, CARDS["A5000"], "bf16", take, parts) for parts in (1, 2)
    )
    forward_only = compute_seconds(
        replace(work, backward={}), config, CARDS["A5000"], "bf16", take, 1
    )
    assert two.passes == pytest.approx(2 * (one.passes + forward_only.passes))


def test_an_update_moves_what_its_optimizer_keeps() -> None:
    config = replace(small(), optim=replace(small().optim, clip_norm=None))
    work = count_work(config, micro_batch=1, precision="fp32", classes=5)
    assert update_bytes(work, config) == 20 * work.parameters  # gradient; weight, momentum twice
    adam = replace(config, optim=replace(config.optim, name="adamw", ema=0.9, clip_norm=1.0))
    assert update_bytes(work, adam) == (28 + 12 + 12) * work.parameters


def test_a_card_without_the_units_is_refused() -> None:
    config = small()
    work = count_work(config, micro_batch=1, precision="bf16", classes=5)
    with pytest.raises(ConfigError, match="V100-16GB has no bf16 units"):
        compute_seconds(work, config, CARDS["V100-16GB"], "bf16", TAKE, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("matmul_efficiency", 1.5), ("busy", 0.0), ("slowest", 0.5), ("network_gb_s", -1.0),
     ("jitter", float("nan")), ("read_ahead", 2.0)],
)  # fmt: skip
def test_impossible_assumptions_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"--assume.{name.replace('_', '-')}"):
        Assumptions(**{name: value})


def test_every_assumption_has_a_reason() -> None:
    for name, value, why in TAKE.rows():
        assert value == getattr(TAKE, name) and len(why) > 40


def test_avions_hours_are_predicted_within_a_fifth_of_what_was_published() -> None:
    """18 hours on 8 A5000s; its README's 130 GPU-hours for the same run are further off."""
    plan = avion_plan()
    hours = avion_hours(plan)
    assert AVION_PUBLISHED[0][0] == 18.0 and abs(hours / 18.0 - 1) < 0.2
    assert AVION_PUBLISHED[1][0] == 16.25 and abs(hours / 16.25 - 1) < 0.35
    always = replace(plan.wish, take=replace(plan.wish.take, busy=1.0), batch=plan.batch)
    assert plan_run(always).hours < 16.25  # operations alone take less
    name, low, high = sensitivity(plan)[0]
    assert name == "busy" and low > plan.hours > high
