"""Work of a step, counted, and how long it takes on a card."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from matinee.errors import ConfigError
from matinee.measure.plan.assumptions import Assumptions
from matinee.measure.plan.batch import Strategy
from matinee.measure.plan.cards import Fleet, read_cards
from matinee.measure.plan.data_side import typical_footage
from matinee.measure.plan.published import AVION_PUBLISHED, avion_hours, avion_plan
from matinee.measure.plan.step_time import compute_seconds, update_bytes
from matinee.measure.plan.whole import Wish, exchanged, plan_run, sensitivity, variations
from matinee.measure.plan.work import count_work
from matinee.models.build import build_video_model
from matinee.models.config import Frames, Joint
from matinee.models.measure import model_cost
from matinee.recipes import RECIPES
from matinee.tasks.config import ClipTextConfig, ContrastiveConfig
from matinee.training.config import TrainConfig
from matinee.training.precision import Precision

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
    # gradient; weight, momentum twice
    assert update_bytes(work, config) == (20 * work.parameters, 0)
    adam = replace(config, optim=replace(config.optim, name="adamw", ema=0.9, clip_norm=1.0))
    assert update_bytes(work, adam) == ((28 + 12 + 12) * work.parameters, 0)


def test_ranks_divide_an_update_with_zero1_and_fsdp() -> None:
    adam = replace(small(), optim=replace(small().optim, name="adamw", ema=0.9, clip_norm=1.0))
    work = count_work(adam, micro_batch=1, precision="fp32", classes=5)
    seconds = {}
    for strategy, each, shared in (("ddp", 52, 0), ("zero1", 24, 28), ("fsdp", 0, 52)):
        config = replace(adam, parallel=replace(adam.parallel, strategy=strategy))
        assert update_bytes(work, config) == (each * work.parameters, shared * work.parameters)
        found = compute_seconds(work, config, CARDS["A5000"], "fp32", TAKE, 1, 4)
        rate = CARDS["A5000"].memory_rate * TAKE.bandwidth_efficiency
        seconds[strategy] = found.update * rate / work.parameters
    assert seconds == pytest.approx({"ddp": 52, "zero1": 24 + 28 / 4, "fsdp": 52 / 4})


@pytest.mark.parametrize(
    ("strategy", "no_sync", "precision", "sent", "more"),
    [
        ("ddp", True, "bf16", 1.0, ()),
        ("ddp", False, "bf16", 1.0, (("before the last", 3, "backward", 1.0),)),
        ("zero1", True, "bf16", 1.0, (("step", 1, "nothing", 0.5),)),
        # Weights of a step in bfloat16 are half of the gradients' bytes.
        ("fsdp", True, "bf16", 0.75,
         (("each", 4, "forward", 0.25), ("before the last", 3, "backward", 0.25))),
        ("fsdp", True, "fp32", 1.0,
         (("each", 4, "forward", 0.5), ("before the last", 3, "backward", 0.5))),
        ("fsdp", False, "bf16", 0.75,
         (("each", 4, "forward", 0.25), ("before the last", 3, "backward", 0.75))),
    ],
)  # fmt: skip
def test_what_ranks_exchange_follows_from_the_strategy(
    strategy: Strategy, no_sync: bool, precision: Precision, sent: float,
    more: tuple[tuple[str, int, str, float], ...],
) -> None:  # fmt: skip
    config, parts = small(), 4
    config = replace(config, parallel=replace(config.parallel, strategy=strategy, no_sync=no_sync))
    work = count_work(config, micro_batch=8, precision=precision, classes=5)
    done = compute_seconds(work, config, CARDS["A100-40GB"], precision, TAKE, parts, 8)
    beside = {"nothing": 0.0, "forward": done.forward / done.total,
              "backward": done.backward / done.total}  # fmt: skip
    found_sent, found = exchanged(config, work, done, precision, parts)
    assert found_sent == sent
    told = [(e.when, e.count(parts), e.beside, e.size * e.share / work.gradient_bytes)
            for e in found]  # fmt: skip
    assert told == [(when, count, beside[of], part) for when, count, of, part in more]


def test_sensitivity_stays_within_what_assumptions_may_be() -> None:
    config = replace(small(), optim=replace(small().optim, batch_size=8))
    footage = typical_footage(1000, 1, fps=30, profile="small", height=288, stride=4)
    take = replace(TAKE, slowest=1.0, slowest_of=2.0)
    wish = Wish(config, Fleet(CARDS["A5000"], 2, 2), footage, take)
    pairs = {name: (low.take, high.take) for name, low, high in variations(wish, 0.1)}
    assert [t.slowest_of for t in pairs["slowest_of"]] == [2.0, pytest.approx(2.2)]


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
