"""Which parameters are trained alike, limits of gradients, and settings that are refused."""

import math

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

from matinee.data.clips import ClipSpec
from matinee.errors import ConfigError
from matinee.models.config import ModelConfig
from matinee.models.dual import DualEncoder
from matinee.models.frames import FrameModel
from matinee.models.joint import JointModel
from matinee.models.masked import MaskedAutoencoder
from matinee.models.text import ClipText
from matinee.pack.reading.reader import Pack
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig
from matinee.training.loop import train
from matinee.training.optim.clip import clip_gradients
from matinee.training.optim.groups import hidden_matrices, parameter_groups
from matinee.training.parallel.ranks import start_ranks
from matinee.training.setup import prepare
from matinee.training.state.runfolder import RunFolder


def small_vit(depth=3, **settings):
    vit = VisionTransformer(
        img_size=16, patch_size=8, embed_dim=8, depth=depth, num_heads=2, num_classes=5, **settings
    )
    return JointModel(vit, frames=2)


def tiny(name, **settings):
    """A timm network of few parameters."""
    return timm.create_model(name, num_classes=5, **settings)


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


def test_what_a_network_of_timm_excepts_is_not_decayed():
    """A Swin's tables of relative positions, which are matrices."""
    swin = tiny(
        "swin_tiny_patch4_window7_224", img_size=56, embed_dim=8, depths=(1, 1), num_heads=(1, 1)
    )
    groups = by_name(FrameModel(swin, 2), OptimConfig(weight_decay=0.05))
    decayed = {name for name, (_, decay) in groups.items() if decay}
    tables = {name for name in groups if name.endswith("relative_position_bias_table")}
    assert len(tables) == 2 and not tables & decayed
    assert "backbone.layers.0.blocks.0.attn.qkv.weight" in decayed


def test_groups_come_in_the_same_order_each_time():
    """Two builds have the same names group by group, all of them once, and the same keys."""
    for name in ("adamw", "muon", "lamb"):
        orders = []
        for model in (small_vit(), small_vit()):
            names = {id(p): name for name, p in model.named_parameters()}
            groups = parameter_groups(model, OptimConfig(name=name, layer_decay=0.5))
            orders.append([[names[id(p)] for p in group["params"]] for group in groups])
            assert sorted(name for own in orders[-1] for name in own) == sorted(names.values())
            assert all(group.keys() == groups[0].keys() for group in groups)
        assert orders[0] == orders[1]


def test_frozen_parameters_are_not_trained():
    """They are in no group."""
    model = small_vit()
    model.backbone.patch_embed.requires_grad_(False)
    assert not any("patch_embed" in name for name in by_name(model, OptimConfig()))


def test_muon_takes_what_maps_one_layer_to_the_next():
    """Not what sees pixels, not classifiers, depthwise kernels or embeddings."""
    resnet = FrameModel(tiny("resnet10t"), 2)
    kernels = {f"{name}.weight" for name, m in resnet.named_modules() if hasattr(m, "kernel_size")}
    pools = {"backbone.maxpool.weight", *(n for n in kernels if "downsample.0" in n)}
    assert hidden_matrices(resnet) == kernels - pools - {"backbone.conv1.0.weight"}
    mobile = tiny("mobilenetv3_small_050")
    found = hidden_matrices(mobile)
    for name, module in mobile.named_modules():
        if isinstance(module, torch.nn.Conv2d):
            depthwise = module.groups > 1
            assert (f"{name}.weight" in found) == (not depthwise and name != "conv_stem")
    assert "classifier.weight" not in found
    vit = JointModel(tiny("vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=8, depth=1,
                          num_heads=2), frames=2, tubelet=2)  # fmt: skip
    parts = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert hidden_matrices(vit) == {f"backbone.blocks.0.{part}.weight" for part in parts}


def test_muon_leaves_last_layers_of_towers_and_decoders_to_adamw():
    """Projections and word embeddings of a dual encoder, the pixels of a masked autoencoder."""
    dual = DualEncoder(small_vit(depth=1), ClipText(width=8, heads=2, layers=1), embed_dim=4)
    block = "text.transformer.resblocks.0"
    text = {name for name in hidden_matrices(dual) if name.startswith("text")}
    assert text == {
        f"{block}.attn.in_proj_weight", f"{block}.attn.out_proj.weight",
        f"{block}.mlp.c_fc.weight", f"{block}.mlp.c_proj.weight",
    }  # fmt: skip
    assert not any("projection" in name for name in hidden_matrices(dual))
    encoder = VisionTransformer(
        img_size=16, patch_size=8, embed_dim=8, depth=1, num_heads=2, num_classes=0,
        class_token=False, global_pool="avg", fc_norm=False,
    )  # fmt: skip
    masked = MaskedAutoencoder(
        encoder, frames=2, mean=(0.5,) * 3, std=(0.2,) * 3, decoder_depth=1, decoder_width=8,
        decoder_heads=2,
    )  # fmt: skip
    found = hidden_matrices(masked)
    assert "encoder_to_decoder.weight" in found and "decoder.blocks.0.mlp.fc1.weight" in found
    assert "decoder.head.weight" not in found and "encoder.patch_embed.proj.weight" not in found


def with_gradients(*gradients):
    parameters = []
    for gradient in gradients:
        parameter = torch.nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient.clone()
        parameters.append(parameter)
    return [*parameters, torch.nn.Parameter(torch.zeros(3))]  # one without a gradient


@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_gradients_are_shortened_to_the_norm(limit):
    """Against float64; shorter ones stay."""
    torch.manual_seed(0)
    gradients = [torch.randn(4, 5), torch.randn(7), torch.randn(())]
    length = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
    parameters = with_gradients(*gradients)
    norm = clip_gradients(parameters, limit, None)
    assert norm.ndim == 0 and float(norm) == pytest.approx(length)
    for parameter, gradient in zip(parameters, gradients, strict=False):
        torch.testing.assert_close(parameter.grad, gradient * min(1, limit / length))


def test_values_are_cut_before_the_norm_is():
    """The norm returned is that before both, so that an infinity is not hidden."""
    parameters = with_gradients(torch.tensor([3.0, -4.0, 0.5]))
    assert float(clip_gradients(parameters, None, 1.0)) == pytest.approx(math.sqrt(25.25))
    assert parameters[0].grad.tolist() == [1.0, -1.0, 0.5]
    parameters = with_gradients(torch.tensor([3.0, -4.0, 0.5]))
    assert float(clip_gradients(parameters, 0.3, 1.0)) == pytest.approx(math.sqrt(25.25))
    wanted = torch.tensor([1.0, -1.0, 0.5]) * 0.3 / 1.5
    torch.testing.assert_close(parameters[0].grad, wanted)
    assert clip_gradients(with_gradients(torch.tensor([torch.inf, 1.0])), None, 1.0).isinf()


def test_without_limits_gradients_stay():
    """Their norm is still told; without any gradient it is zero."""
    parameters = with_gradients(torch.tensor([3.0, 4.0]))
    assert float(clip_gradients(iter(parameters), None, None)) == 5.0
    assert parameters[0].grad.tolist() == [3.0, 4.0]
    assert float(clip_gradients([], 1.0, 1.0)) == 0.0


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

    with start_ranks("cpu", 60) as ranks:
        start = prepare(Pack(clips_pack), settings("none"), ranks).task.model
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
     ({"head_lr": 0.0}, "--optim.head-lr 0.0"), ({"lr": math.nan}, "--optim.lr nan"),
     ({"lr": math.inf}, "--optim.lr inf: must be a finite number"),
     ({"clip_norm": math.nan}, "--optim.clip-norm nan"),
     ({"betas": (0.9, math.nan)}, "--optim.betas nan"),
     ({"betas": (0.9,)}, "--optim.betas .*two numbers"),
     ({"warmup_epochs": math.inf}, "--optim.warmup-epochs inf"),
     ({"ema": 1.0}, "--optim.ema 1.0"), ({"clip_value": 0.0}, "--optim.clip-value 0.0"),
     ({"base_momentum": 1.0}, "--optim.base-momentum 1.0"), ({"rise": 1.0}, "--optim.rise 1.0"),
     ({"schedule": "one-cycle", "momentum": 0.5}, "momentum .or first beta. 0.5 of sgd")],
)  # fmt: skip
def test_impossible_settings_are_refused_by_name(change, words):
    """At construction."""
    with pytest.raises(ConfigError, match=words):
        OptimConfig(**change)
