"""Schedules and optimizers against formulas written down here."""

import math
from dataclasses import replace

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from matinee.data.clips import ClipSpec
from matinee.errors import ConfigError
from matinee.models.config import ModelConfig
from matinee.models.joint import JointModel
from matinee.pack.reader import Pack
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig
from matinee.training.loop import train
from matinee.training.optim.build import build_optimizer, parameter_groups
from matinee.training.optim.schedule import describe, learning_rate
from matinee.training.setup import prepare
from matinee.training.state.runfolder import RunFolder


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


def test_steps_fall_where_they_are_told():
    """At 3/8 and 3/4 of 8 epochs, as I3D's 150 k and 300 k of 400 k iterations."""
    config = OptimConfig(
        lr=1.0, epochs=8, warmup_epochs=0, schedule="step", drops=(150 / 400, 300 / 400)
    )
    rates = [learning_rate(config, step, 5) for step in range(40)]
    assert rates == pytest.approx([1.0] * 15 + [0.1] * 15 + [0.01] * 10)


def test_a_rate_for_another_batch_grows_in_proportion():
    """VideoMAE's 1.5e-4 and 1e-5 at 256: warm-up, peak and end at 2,048 are eight times those."""
    config = OptimConfig(
        lr=1.5e-4, min_lr=1e-5, base_batch=256, batch_size=2048, epochs=10, warmup_epochs=1
    )
    assert learning_rate(config, 49, 100) == pytest.approx(1.2e-3 / 2)
    assert learning_rate(config, 100, 100) == pytest.approx(1.2e-3)
    middle = learning_rate(config, 550, 100)  # half of the cosine
    assert middle == pytest.approx((1.2e-3 + 8e-5) / 2)
    assert learning_rate(config, 999, 100) == pytest.approx(8e-5, rel=1e-3)
    assert "0.0012 = 0.00015 × batch 2048 / 256" in describe(config)
    alone = replace(config, base_batch=None)
    assert learning_rate(alone, 100, 100) == pytest.approx(1.5e-4)
    assert "0.00015" in describe(alone) and "×" not in describe(alone)


def test_constant_stays():
    """After warm-up."""
    config = OptimConfig(lr=0.3, epochs=5, warmup_epochs=1, schedule="constant")
    assert {learning_rate(config, step, 10) for step in range(10, 50)} == {0.3}


def test_biases_and_norms_are_not_decayed():
    """One update with zero gradient moves decayed weights only."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    for name in ("sgd", "adamw", "lion"):
        optimizer = build_optimizer(net, OptimConfig(name=name, lr=0.1, weight_decay=0.5))
        before = [p.detach().clone() for p in net.parameters()]
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        moved = [not torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True)]
        assert moved == [True, False, False, False]


@pytest.mark.parametrize("name", ["sgd", "adamw", "lion"])
def test_updates_follow_the_published_rule(name):
    """Three steps in float64: SGD with momentum; AdamW (arXiv 1711.05101, Algorithm 2); Lion
    (arXiv 2302.06675, Algorithm 2). With betas of 0.8 and 0.95."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(40, 40, dtype=torch.float64))
    holder = torch.nn.Module()
    holder.weight = weight
    config = OptimConfig(name=name, lr=0.1, weight_decay=0.01, momentum=0.9, betas=(0.8, 0.95))
    optimizer = build_optimizer(holder, config)
    w = weight.detach().clone()
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for step in range(1, 4):
        gradient = torch.randn(40, 40, dtype=torch.float64)
        weight.grad = gradient.clone()
        optimizer.step()
        if name == "sgd":
            g = gradient + 0.01 * w
            m = g if step == 1 else 0.9 * m + g
            w = w - 0.1 * m
        elif name == "adamw":
            w = w * (1 - 0.1 * 0.01)
            m, v = 0.8 * m + 0.2 * gradient, 0.95 * v + 0.05 * gradient**2
            w = w - 0.1 * (m / (1 - 0.8**step)) / ((v / (1 - 0.95**step)).sqrt() + 1e-8)
        else:
            w = w - 0.1 * ((0.8 * m + 0.2 * gradient).sign() + 0.01 * w)
            m = 0.95 * m + 0.05 * gradient
        torch.testing.assert_close(weight.detach(), w)


def small_vit(depth=3, **settings):
    vit = VisionTransformer(
        img_size=16, patch_size=8, embed_dim=8, depth=depth, num_heads=2, num_classes=5, **settings
    )
    return JointModel(vit, frames=2)


def by_name(model, config):
    """Parameter name → (multiple of the rate, weight decay)."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        names[id(p)]: (group["lr_scale"], group["weight_decay"])
        for group in parameter_groups(model, config)
        for p in group["params"]
    }


def test_each_block_learns_at_a_part_of_the_next_ones_rate():
    """VideoMAE's 0.75: 0.75 ** (layers + 1 - layer) with patches as 0, classifier as layers + 1."""
    model = small_vit(pre_norm=True)
    groups = by_name(model, OptimConfig(layer_decay=0.75))
    assert groups.keys() == {name for name, _ in model.named_parameters()}
    powers = {
        "temporal_embed": 4, "backbone.cls_token": 4, "backbone.pos_embed": 4,
        "backbone.patch_embed.proj.weight": 4, "backbone.norm_pre.weight": 4,
        "backbone.blocks.0.attn.qkv.weight": 3, "backbone.blocks.1.mlp.fc1.bias": 2,
        "backbone.blocks.2.norm1.weight": 1, "backbone.norm.weight": 0,
        "backbone.head.weight": 0, "backbone.head.bias": 0,
    }  # fmt: skip
    assert {name: groups[name][0] for name in powers} == pytest.approx(
        {name: 0.75**power for name, power in powers.items()}
    )


def test_positions_and_tokens_are_not_decayed():
    """Though they have three dimensions; matrices of patches, blocks and classifier are."""
    model = small_vit()
    config = OptimConfig(weight_decay=0.05)
    decayed = {name for name, (_, decay) in by_name(model, config).items() if decay}
    blocks = [f"blocks.{i}.{part}" for i in range(3)
              for part in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")]  # fmt: skip
    assert decayed == {f"backbone.{name}.weight" for name in ("patch_embed.proj", "head", *blocks)}


def test_the_classifier_learns_faster_by_its_factor(clips_pack, tmp_path):
    """One step of plain gradient descent: five times as far as at the common rate, bias too; all
    else moves as far as before. The logged rate is the common one."""

    def settings(out, **optim):
        return TrainConfig(
            data=DataConfig(path=str(clips_pack), workers=1, mode="threads"),
            run=RunConfig(out=str(tmp_path / out), device="cpu"),
            model=ModelConfig(backbone="resnet10t", dropout=0.0),
            clip=ClipSpec(frames=2, size=32),
            optim=OptimConfig(
                lr=0.01, batch_size=12, epochs=1, warmup_epochs=0, schedule="constant",
                momentum=0.0, weight_decay=0.0, clip_norm=None, **optim,
            ),
        )  # fmt: skip

    start = prepare(Pack(clips_pack), settings("none"), torch.device("cpu")).task.model
    before = {name: p.detach().clone() for name, p in start.named_parameters()}
    moves = []
    for out, factor in (("a", 1.0), ("b", 5.0)):
        assert train(settings(out, head_lr=factor)).steps == 1
        folder = RunFolder(tmp_path / out)
        after = folder.load_checkpoint()["state"]["model"]
        moves.append({name: after[name] - value for name, value in before.items()})
        assert [row["lr"] for row in folder.rows() if row["kind"] == "train"] == [0.01]
    once, five = moves
    for name in before:
        factor = 5 if name.startswith("backbone.fc.") else 1
        torch.testing.assert_close(five[name], factor * once[name], rtol=1e-3, atol=1e-6)
    assert once["backbone.fc.bias"].abs().max() > 1e-4


@pytest.mark.parametrize(
    ("change", "words"),
    [({"lr": 0}, "--optim.lr 0"), ({"accumulate": 3}, "does not divide the batch size 16"),
     ({"epochs": 0}, "--optim.epochs"), ({"clip_norm": -1.0}, "--optim.clip-norm"),
     ({"batch_size": 0}, "--optim.batch-size 0"), ({"base_batch": 0}, "--optim.base-batch 0"),
     ({"lr": 0.1, "min_lr": 0.2}, "--optim.min-lr 0.2: from 0 to --optim.lr 0.1"),
     ({"drops": (20.0, 40.0)}, r"--optim.drops \(20.0, 40.0\): parts of the epochs"),
     ({"betas": (0.9, 1.0)}, "--optim.betas"), ({"layer_decay": 1.5}, "--optim.layer-decay 1.5"),
     ({"head_lr": 0.0}, "--optim.head-lr 0.0")],
)  # fmt: skip
def test_impossible_settings_are_refused_by_name(change, words):
    """At construction."""
    with pytest.raises(ConfigError, match=words):
        OptimConfig(**change)
