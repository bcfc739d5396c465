"""Joint space-time ViTs against timm's image forward and against attention written out."""

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers import set_fused_attn
from torch.utils._python_dispatch import TorchDispatchMode

from matinee.errors import ConfigError
from matinee.models.joint import JointModel, drop_tokens
from matinee.models.positions import interpolate_space, interpolate_time, sine_table
from matinee.models.weights import load_into

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "num_heads": 3, "depth": 2}


def vit(name="vit_tiny_patch16_224", **changes):
    """A small float64 ViT of a family, every parameter random so that none is without effect."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **{**SMALL, **changes}).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


FAMILIES = {
    "class token": {},
    "clip": {"name": "vit_base_patch16_clip_224"},
    "clip quickgelu": {"name": "vit_base_patch16_clip_quickgelu_224"},
    "registers": {"name": "vit_small_patch14_reg4_dinov2"},
    "mean pooling": {"class_token": False, "global_pool": "avg"},
    "mean with class token": {"global_pool": "avg", "pool_include_prefix": True},
    "attention pooling": {"name": "vit_base_patch16_siglip_224"},
}


@pytest.mark.parametrize("tubelet", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_equal_frames_have_the_image_networks_features_and_logits(family, tubelet):
    image = vit(**FAMILIES[family])
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    features = image.forward_head(image.forward_features(x), pre_logits=True)
    logits = image(x)
    model = JointModel(image, frames=4, tubelet=tubelet).double().eval()
    clip = x[:, :, None].expand(-1, -1, 4, -1, -1)
    torch.testing.assert_close(model.embed(clip), features, atol=1e-10, rtol=0)
    torch.testing.assert_close(model(clip), logits, atol=1e-10, rtol=0)
    assert features.std() > 0.1 and model.num_features == features.shape[1] == 24


def written_out(model, clip, copies):
    """CLIP's class-token features with softmax attention as a formula; `copies` class tokens."""
    net, (batch, _, frames) = model.backbone, clip.shape[:3]
    kernel = net.patch_embed.proj.weight
    rows = []
    for t in range(frames):
        patches = F.conv2d(clip[:, :, t], kernel, stride=kernel.shape[-1]).flatten(2).mT
        rows.append(patches + net.pos_embed[:, 1:] + model.temporal_embed[:, t : t + 1])
    times = model.temporal_embed if copies > 1 else torch.zeros(1, 1, 24, dtype=torch.float64)
    token = (net.cls_token + net.pos_embed[:, :1] + times).expand(batch, -1, -1)
    x = net.norm_pre(torch.cat([token, *rows], dim=1))
    for block in net.blocks:
        q, k, v = block.attn.qkv(block.norm1(x)).chunk(3, dim=-1)
        heads = []
        for i in range(0, 24, 8):
            scores = (q[..., i : i + 8] @ k[..., i : i + 8].mT / 8**0.5).exp()
            heads.append(scores / scores.sum(-1, keepdim=True) @ v[..., i : i + 8])
        x = x + block.attn.proj(torch.cat(heads, dim=-1))
        hidden = block.mlp.fc1(block.norm2(x))
        x = x + block.mlp.fc2(hidden * torch.sigmoid(1.702 * hidden))
    return net.norm(x)[:, :copies].mean(dim=1)


@pytest.mark.parametrize(("class_token", "copies"), [("frame", 3), ("clip", 1)])
def test_all_patches_of_all_frames_attend_jointly(class_token, copies):
    """With a temporal embedding that is no longer zero."""
    model = JointModel(
        vit("vit_base_patch16_clip_quickgelu_224"), frames=3, class_token=class_token
    ).double()
    torch.nn.init.normal_(model.temporal_embed)
    clip = torch.randn(2, 3, 3, 32, 32, dtype=torch.float64)
    wanted = written_out(model.eval(), clip, copies)
    torch.testing.assert_close(model.embed(clip), wanted, atol=1e-10, rtol=0)


def test_one_class_token_for_the_clip_weighs_less_than_in_the_image_network():
    """Why there is one per frame by default."""
    image = vit()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    logits = image(x)
    model = JointModel(image, frames=4, class_token="clip").double().eval()
    assert (model(x[:, :, None].expand(-1, -1, 4, -1, -1)) - logits).abs().max() > 1e-3


def test_the_order_of_frames_matters_through_the_temporal_embedding_alone():
    model = JointModel(vit(), frames=4).double().eval()
    clip = torch.randn(2, 3, 4, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(model(clip), model(clip.flip(2)), atol=1e-10, rtol=0)
    model(clip).sum().backward()
    assert (model.temporal_embed.grad.abs().amax(dim=2) > 0).all()
    torch.nn.init.normal_(model.temporal_embed)
    assert (model(clip) - model(clip.flip(2))).abs().max() > 1e-3


class Shapes(TorchDispatchMode):
    """Remembers the shapes of all tensors that operations make, backward included."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, torch.Tensor):
                self.seen.add(tuple(value.shape))
        return out


def test_no_matrix_of_tokens_by_tokens_is_made_even_if_timm_is_told_to():
    set_fused_attn(False)
    try:
        model = JointModel(vit().float(), frames=4)
    finally:
        set_fused_attn(True)
    tokens = 4 * (16 + 1)
    squares = []
    for fused in (True, False):
        for block in model.backbone.blocks:
            block.attn.fused_attn = block.attn.fused_attn and fused
        with Shapes() as shapes:
            model(torch.randn(1, 3, 4, 32, 32)).sum().backward()
        squares.append(sum(shape.count(tokens) > 1 for shape in shapes.seen))
    assert squares[0] == 0 < squares[1]


def test_patch_dropout_thins_out_patches_in_training_and_keeps_class_tokens():
    model = JointModel(vit(), frames=4, patch_dropout=0.75).double()
    lengths = []
    model.backbone.blocks[0].register_forward_pre_hook(lambda _, args: lengths.append(args[0]))
    clip = torch.randn(2, 3, 4, 32, 32, dtype=torch.float64)
    model.train()(clip)
    model.eval()(clip)
    thin, full = lengths
    assert thin.shape[1] == 4 + 16 and full.shape[1] == 4 + 64
    assert torch.equal(thin[:, :4], full[:, :4])


def test_dropped_tokens_are_drawn_evenly_and_for_each_clip():
    """3 of 8 kept, in order; over many clips each as often, within five deviations."""
    torch.manual_seed(0)
    clips = 4000
    x = torch.arange(8.0).expand(clips, 8)[:, :, None]
    kept = drop_tokens(x, 0.6)[:, :, 0]
    assert kept.shape == (clips, 3) and (kept.diff(dim=1) > 0).all()
    share = torch.bincount(kept.flatten().long(), minlength=8) / clips
    assert (share - 3 / 8).abs().max() < 5 * (3 / 8 * 5 / 8 / clips) ** 0.5
    assert len({tuple(row) for row in kept.tolist()}) == 56  # all choices of 3 out of 8
    assert drop_tokens(x, 0.99).shape[1] == 1


def test_drop_path_leaves_out_a_block_for_whole_clips():
    """The second block is dropped with probability 0.5: its output is its input or not at all."""
    model = JointModel(vit(drop_path_rate=0.5), frames=2).double().train()
    seen = {}
    block = model.backbone.blocks[1]
    block.drop_path1.register_forward_hook(lambda _m, _a, out: seen.update(out=out))
    torch.manual_seed(0)
    model(torch.randn(64, 3, 2, 32, 32, dtype=torch.float64))
    zero = (seen["out"] == 0).flatten(1)
    assert (zero.all(dim=1) == zero.any(dim=1)).all()
    assert 16 < zero.all(dim=1).sum() < 48


@pytest.mark.parametrize("tubelet", [1, 2])
@pytest.mark.parametrize("family", ["clip", "registers"])
def test_image_weights_of_another_size_fit_after_interpolation(tmp_path, family, tubelet):
    """Equal frames then give what timm gives after its own resizing."""
    image = vit(**FAMILIES[family])
    torch.save(image.state_dict(), tmp_path / "weights.pth")
    image.set_input_size((48, 64))
    x = torch.randn(1, 3, 48, 64, dtype=torch.float64)
    wanted = image(x)
    larger = timm.create_model(
        FAMILIES[family]["name"], num_classes=5, **{**SMALL, "img_size": (48, 64)}
    )
    model = JointModel(larger, frames=4, tubelet=tubelet).double().eval()
    load_into(model, tmp_path / "weights.pth")
    clip = x[:, :, None].expand(-1, -1, 4, -1, -1)
    torch.testing.assert_close(model(clip), wanted, atol=1e-4, rtol=0)  # resized in float32


def test_a_run_of_other_frames_fits_after_interpolation(tmp_path):
    """A temporal embedding that grows evenly does so still."""
    model = JointModel(vit(), frames=8).double()
    ramp = torch.arange(8.0, dtype=torch.float64)[None, :, None].expand(1, 8, 24)
    model.temporal_embed.data.copy_(ramp)
    torch.save(model.state_dict(), tmp_path / "last.pt")
    shorter = JointModel(vit(), frames=4).double()
    load_into(shorter, tmp_path / "last.pt")
    assert shorter.temporal_embed[0, :, 0].tolist() == [0.5, 2.5, 4.5, 6.5]


def test_time_is_interpolated_linearly_between_the_middles_of_tubelets():
    """numpy.interp on the middles, ends held."""
    embed = torch.randn(1, 8, 3, dtype=torch.float64)
    for frames in (3, 8, 20):
        places = (np.arange(frames) + 0.5) * 8 / frames - 0.5
        wanted = np.stack([np.interp(places, np.arange(8), embed[0, :, d]) for d in range(3)], 1)
        np.testing.assert_allclose(interpolate_time(embed, frames)[0], wanted, atol=1e-12)


def test_space_is_interpolated_as_timm_does_and_class_tokens_stay():
    embed = torch.randn(1, 2 + 49, 6)
    wanted = timm.layers.resample_abs_pos_embed(embed, (4, 11), (7, 7), num_prefix_tokens=2)
    torch.testing.assert_close(interpolate_space(embed, (4, 11), 2), wanted)
    assert torch.equal(interpolate_space(embed, (7, 7), 2), embed)
    with pytest.raises(ConfigError, match=r"51 tokens, 1 of them class tokens.*4×4"):
        interpolate_space(embed, (4, 4), 1)


def test_the_sine_table_is_the_papers():
    """Element by element, in a loop."""
    table = sine_table(7, 10)
    assert table.shape == (1, 7, 10) and table.dtype == torch.float32
    for n in range(7):
        for i in range(5):
            angle = n / 10000 ** (2 * i / 10)
            assert table[0, n, 2 * i] == pytest.approx(np.sin(angle), abs=1e-6)
            assert table[0, n, 2 * i + 1] == pytest.approx(np.cos(angle), abs=1e-6)


def test_sine_positions_have_no_learned_ones_and_tell_frames_apart():
    model = JointModel(
        vit(class_token=False, global_pool="avg"), frames=4, tubelet=2, positions="sine"
    ).double()
    names = [name for name, _ in model.named_parameters()]
    assert "temporal_embed" not in names and "backbone.pos_embed" not in names
    assert "table" not in model.state_dict()
    clip = torch.randn(1, 3, 4, 32, 32, dtype=torch.float64)
    assert (model(clip) - model(clip.roll(2, dims=2))).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: JointModel(vit(), frames=5, tubelet=2), "5 frames .* tubelets of 2"),
        (lambda: JointModel(vit(), frames=4, tubelet=0), "4 frames .* tubelets of 0"),
        (lambda: JointModel(vit(), frames=4, positions="sine"), "1 class or register tokens"),
        (lambda: JointModel(vit(global_pool="max"), frames=4), "pooling 'max'"),
        (lambda: JointModel(vit(dynamic_img_size=True), frames=4), "fixed input size"),
        (lambda: JointModel(timm.create_model("resnet10t"), frames=4), "plain ViT.*ResNet is none"),
        (
            lambda: JointModel(timm.create_model("deit_tiny_distilled_patch16_224"), frames=4),
            "plain ViT.*Distilled is none",
        ),
    ],
)
def test_networks_and_frames_that_cannot_be_joined_are_refused(build, words):
    with pytest.raises(ConfigError, match=words):
        build()


def test_clips_of_another_length_or_size_are_refused():
    model = JointModel(vit(), frames=4).double()
    with pytest.raises(ValueError, match="a clip of 3 frames for a network made for 4"):
        model(torch.randn(1, 3, 3, 32, 32, dtype=torch.float64))
    with pytest.raises(ValueError, match="a clip of 32×64 pixels for a network made for 32×32"):
        model(torch.randn(1, 3, 4, 32, 64, dtype=torch.float64))
