"""Schedules and optimizers against formulas written down here."""

import math

import pytest
import torch

from matinee.errors import ConfigError
from matinee.training.config import OptimConfig
from matinee.training.optim import build_optimizer
from matinee.training.schedule import learning_rate


def test_warm_up_is_linear_and_cosine_ends_at_zero():
    """10 epochs of 20 steps, 2 of them warm-up."""
    config = OptimConfig(lr=0.4, epochs=10, warmup_epochs=2, schedule="cosine")
    for step in range(40):
        assert learning_rate(config, step, 20) == pytest.approx(0.4 * (step + 1) / 40)
    for step in range(40, 200):
        wanted = 0.4 * (1 + math.cos(math.pi * (step - 40) / 160)) / 2
        assert learning_rate(config, step, 20) == pytest.approx(wanted)
    assert learning_rate(config, 199, 20) < 1e-4


def test_steps_divide_by_ten_at_two_fifths_and_four_fifths():
    """TSM's 20 and 40 of 50 epochs."""
    config = OptimConfig(lr=1.0, epochs=50, warmup_epochs=0, schedule="step")
    rates = [learning_rate(config, epoch * 7, 7) for epoch in range(50)]
    assert rates == pytest.approx([1.0] * 20 + [0.1] * 20 + [0.01] * 10)


def test_constant_stays():
    """After warm-up."""
    config = OptimConfig(lr=0.3, epochs=5, warmup_epochs=1, schedule="constant")
    assert {learning_rate(config, step, 10) for step in range(10, 50)} == {0.3}


def test_biases_and_norms_are_not_decayed():
    """One update with zero gradient moves decayed weights only."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    for name in ("sgd", "adamw"):
        optimizer = build_optimizer(net, OptimConfig(name=name, lr=0.1, weight_decay=0.5))
        before = [p.detach().clone() for p in net.parameters()]
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        moved = [not torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True)]
        assert moved == [True, False, False, False]


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_updates_follow_the_published_rule(name):
    """Three steps in float64: SGD with momentum; AdamW (arXiv 1711.05101, Algorithm 2)."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
    holder = torch.nn.Module()
    holder.weight = weight
    config = OptimConfig(name=name, lr=0.1, weight_decay=0.01, momentum=0.9)
    optimizer = build_optimizer(holder, config)
    w = weight.detach().clone()
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for step in range(1, 4):
        gradient = torch.randn(4, 4, dtype=torch.float64)
        weight.grad = gradient.clone()
        optimizer.step()
        if name == "sgd":
            g = gradient + 0.01 * w
            m = g if step == 1 else 0.9 * m + g
            w = w - 0.1 * m
        else:
            w = w * (1 - 0.1 * 0.01)
            m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
            w = w - 0.1 * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
        torch.testing.assert_close(weight.detach(), w)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"lr": 0}, "--optim.lr 0"), ({"accumulate": 3}, "does not divide the batch size 16"),
     ({"epochs": 0}, "--optim.epochs"), ({"clip_norm": -1.0}, "--optim.clip-norm"),
     ({"batch_size": 0}, "--optim.batch-size 0")],
)  # fmt: skip
def test_impossible_settings_are_refused_by_name(change, words):
    """At construction."""
    with pytest.raises(ConfigError, match=words):
        OptimConfig(**change)
