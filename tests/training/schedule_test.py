"""Learning rates and momenta against formulas written down here and against torch's schedulers."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from matinee.training.config import OptimConfig
from matinee.training.optim.schedule import describe, learning_rate, momentum


def rates_of(config, steps_per_epoch, *, batch_size=None):
    """The rate of every step of equal epochs."""
    size = config.batch_size if batch_size is None else batch_size
    return [
        learning_rate(config, step / steps_per_epoch, steps_per_epoch, size)
        for step in range(config.epochs * steps_per_epoch)
    ]


def torch_rates(schedulers, lr, steps):
    """What a torch scheduler sets before each step: rates, momenta and first betas."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], lr=lr, fused=False, foreach=False)
    scheduler = schedulers(optimizer)
    found = []
    for _ in range(steps):
        group = optimizer.param_groups[0]
        found.append((group["lr"], group["betas"][0]))
        optimizer.step()
        scheduler.step()
    return found


def test_warm_up_is_linear_and_cosine_ends_at_zero():
    """10 epochs of 20 steps, 2 of them warm-up."""
    config = OptimConfig(lr=0.4, epochs=10, warmup_epochs=2, schedule="cosine")
    rates = rates_of(config, 20)
    assert rates[:40] == pytest.approx([0.4 * (step + 1) / 40 for step in range(40)])
    wanted = [0.4 * (1 + math.cos(math.pi * (step - 40) / 160)) / 2 for step in range(40, 200)]
    assert rates[40:] == pytest.approx(wanted)
    assert rates[-1] < 1e-4


def test_cosine_is_torchs_annealing_with_an_end_above_zero():
    """Without warm-up, step by step."""
    config = OptimConfig(lr=0.3, min_lr=0.02, epochs=6, warmup_epochs=0)
    annealed = torch_rates(
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=42, eta_min=0.02), 0.3, 42
    )
    assert rates_of(config, 7) == pytest.approx([lr for lr, _ in annealed])


@pytest.mark.parametrize("rise", [0.25, 0.3])
def test_one_cycle_is_torchs_step_by_step(rise):
    """Rate and first beta of 8 epochs of 25 steps, the rate with a peak of 0.2 and an end of 0.002.

    torch counts from the first step's rate to the last step's; here the end is reached after the
    last step, one more: so its cycle is given 201 steps, with the peak at the same one.
    """
    config = OptimConfig(
        name="adamw", betas=(0.95, 0.999), lr=0.2, min_lr=0.002, epochs=8, schedule="one-cycle",
        rise=rise, base_momentum=0.85,
    )  # fmt: skip
    cycle = torch_rates(
        lambda o: torch.optim.lr_scheduler.OneCycleLR(
            o, max_lr=0.2, total_steps=201, pct_start=(rise * 200 + 1) / 201,
            base_momentum=0.85, max_momentum=0.95, div_factor=25, final_div_factor=0.2 / 25 / 0.002,
        ), 0.2, 200,
    )  # fmt: skip
    assert rates_of(config, 25) == pytest.approx([lr for lr, _ in cycle])
    momenta = [momentum(config, step / 25) for step in range(200)]
    assert momenta == pytest.approx([beta for _, beta in cycle])
    assert min(momenta) == pytest.approx(0.85) and max(momenta) == 0.95
    assert momenta.index(min(momenta)) == rise * 200 == rates_of(config, 25).index(0.2)


def test_momentum_of_a_cycle_starts_from_the_optimizers_own():
    """SGD's, LARS's and Muon's is `momentum`, others' the first beta; other schedules leave it."""
    config = OptimConfig(schedule="one-cycle", momentum=0.97, betas=(0.93, 0.99))
    starts = {
        name: momentum(replace(config, name=name), 0.0)
        for name in ("sgd", "lars", "muon", "adam", "adamw", "lamb", "lion")
    }
    assert starts == pytest.approx({
        "sgd": 0.97, "lars": 0.97, "muon": 0.97, "adam": 0.93, "adamw": 0.93, "lamb": 0.93,
        "lion": 0.93,
    })  # fmt: skip
    assert momentum(replace(config, schedule="cosine"), 3.0) is None


def test_steps_are_torchs_multistep_rates():
    """TSM's 20 and 40 of 50 epochs."""
    config = OptimConfig(lr=1.0, epochs=50, warmup_epochs=0, schedule="step")
    steps = torch_rates(
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [20 * 7, 40 * 7], gamma=0.1), 1.0, 350
    )
    assert rates_of(config, 7) == pytest.approx([lr for lr, _ in steps])


def test_steps_fall_where_they_are_told():
    """At 3/8 and 3/4 of 8 epochs, as I3D's 150 k and 300 k of 400 k iterations; and at 55 of 100,
    though 0.55 × 100 is a little more than 55 in floating point."""
    config = OptimConfig(
        lr=1.0, epochs=8, warmup_epochs=0, schedule="step", drops=(150 / 400, 300 / 400)
    )
    assert rates_of(config, 5) == pytest.approx([1.0] * 15 + [0.1] * 15 + [0.01] * 10)
    config = replace(config, epochs=100, drops=(0.55,))
    assert rates_of(config, 1) == pytest.approx([1.0] * 55 + [0.1] * 45)


def test_constant_stays():
    """After warm-up."""
    config = OptimConfig(lr=0.3, epochs=5, warmup_epochs=1, schedule="constant")
    assert set(rates_of(config, 10)[10:]) == {0.3}


@pytest.mark.parametrize("warmup", [0.0, 0.01, 0.15, 1.0, 1.25, 9.0])
def test_warm_up_never_exceeds_the_peak_and_ends_on_it(warmup):
    """Also of a part of an epoch, of less than a step, and longer than training."""
    config = OptimConfig(lr=0.5, epochs=4, warmup_epochs=warmup, schedule="constant")
    rates = rates_of(config, 10)
    assert rates == sorted(rates)
    assert max(rates) == rates[-1] == pytest.approx(0.5)
    length = min(warmup, 4) * 10
    wanted = [min(0.5, 0.5 * (step + 1) / length) if length else 0.5 for step in range(40)]
    assert rates == pytest.approx(wanted)


def test_a_rate_for_another_batch_grows_in_proportion():
    """VideoMAE's 1.5e-4 and 1e-5 at 256: warm-up, peak and end at 2,048 are eight times those."""
    config = OptimConfig(
        lr=1.5e-4, min_lr=1e-5, base_batch=256, batch_size=2048, epochs=10, warmup_epochs=1
    )
    rates = rates_of(config, 100)
    assert rates[49] == pytest.approx(1.2e-3 / 2)
    assert rates[100] == pytest.approx(1.2e-3)
    assert rates[550] == pytest.approx((1.2e-3 + 8e-5) / 2)  # half of the cosine
    assert rates[999] == pytest.approx(8e-5, rel=1e-3)
    assert "0.0012 = 0.00015 × batch 2048 / 256" in describe(config)
    alone = replace(config, base_batch=None)
    assert rates_of(alone, 100)[100] == pytest.approx(1.5e-4)
    assert "0.00015" in describe(alone) and "×" not in describe(alone)


def test_a_rate_can_grow_with_the_root_of_the_batch():
    """Four times the batch, twice the rates, of each step by its own batch."""
    config = OptimConfig(
        lr=0.1, min_lr=0.01, base_batch=64, lr_scaling="sqrt", batch_size=256, epochs=4
    )
    plain = rates_of(replace(config, base_batch=None), 10)
    assert rates_of(config, 10) == pytest.approx([2 * rate for rate in plain])
    assert rates_of(config, 10, batch_size=64) == pytest.approx(plain)
    assert rates_of(config, 10, batch_size=16) == pytest.approx([rate / 2 for rate in plain])
    assert "0.2 = 0.1 × √(batch 256 / 64)" in describe(config)


@given(
    schedule=st.sampled_from(["cosine", "step", "one-cycle", "constant"]),
    lengths=st.lists(st.integers(1, 30), min_size=2, max_size=6),
    warmup=st.floats(0, 3),
)
def test_epochs_of_other_lengths_follow_the_same_curve(schedule, lengths, warmup):
    """After warm-up, the rate depends on progress alone; a warm-up ends where it would."""
    config = OptimConfig(
        lr=0.4, epochs=len(lengths), warmup_epochs=warmup, schedule=schedule, min_lr=1e-3
    )
    warmup = min(warmup, len(lengths))
    for number, length in enumerate(lengths):
        for step in range(length):
            epoch = number + step / length
            rate = learning_rate(config, epoch, length, 16)
            assert 0 < rate <= 0.4
            if schedule == "one-cycle" or epoch >= warmup:
                assert rate == learning_rate(config, epoch, 1000, 16)
            else:
                assert rate == pytest.approx(min(0.4, 0.4 * (epoch + 1 / length) / warmup))


def test_the_sentence_tells_optimizer_rate_and_curve():
    """With what differs between layers, and the average."""
    config = OptimConfig(name="adamw", lr=1e-3, layer_decay=0.75, head_lr=2, ema=0.999)
    assert describe(config) == (
        "adamw, learning rate 0.001, cosine after 1 epoch of warm-up to 0; "
        "each block times 0.75; the classifier times 2; weights averaged with decay 0.999"
    )
    step = OptimConfig(schedule="step", warmup_epochs=0)
    assert describe(step) == "sgd, learning rate 0.01, step: a tenth after 20, 40 epochs"
    cycle = OptimConfig(schedule="one-cycle", epochs=10, min_lr=1e-4)
    assert describe(cycle) == (
        "sgd, learning rate 0.01, one-cycle: up for 0.3 of 10 epochs, then to 0.0001"
    )
