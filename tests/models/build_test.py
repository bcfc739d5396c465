"""From a config to a video network: what timm itself says on the frames, and clear refusals."""

import re
from dataclasses import replace

import pytest
import timm
import torch

from matinee.errors import ConfigError
from matinee.models.build import build_encoder, build_video_model
from matinee.models.config import Frames, Inflate, Joint, ModelConfig, Shift

VIT = ModelConfig("test_vit", Joint(), patch_size=8, dropout=0.0)
CNN = ModelConfig("test_resnet", Shift(), dropout=0.0)
VIDEO = torch.randn(2, 3, 4, 32, 32, generator=torch.Generator().manual_seed(0))


def build(config, *, num_classes=5, frames=4, size=32):
    torch.manual_seed(0)
    return build_video_model(config, num_classes=num_classes, frames=frames, size=size)


@pytest.mark.parametrize(
    ("config", "note"),
    [
        (replace(CNN, temporal=Frames()), "each frame alone"),
        (replace(VIT, temporal=Frames()), "each frame alone"),
        (CNN, r"temporal shift \(residual\)"),
        (replace(CNN, temporal=Shift("in-place", causal=True)), r"shift \(in-place, causal\)"),
        (replace(CNN, temporal=Inflate()), "inflated 3x3x3"),
        (replace(CNN, backbone="test_efficientnet", temporal=Inflate()), "inflated 3x3x3"),
        (replace(CNN, backbone="test_convnext", temporal=Shift()), "temporal shift"),
        (VIT, "joint space-time attention, tubelets of 1"),
        (replace(VIT, temporal=Joint(tubelet=2, positions="sine")), "tubelets of 2"),
    ],
)
def test_every_way_to_see_time_gives_logits_and_features(config, note):
    model, normalisation, said = build(config)
    model.eval()
    with torch.no_grad():
        assert model(VIDEO).shape == (2, 5)
        assert model.embed(VIDEO).shape == (2, model.num_features)
    assert model.frames == 4
    assert said.startswith(config.backbone) and said.endswith("weights from scratch")
    assert re.search(note, said)
    published = timm.create_model(config.backbone).pretrained_cfg
    assert (normalisation.mean, normalisation.std) == (published["mean"], published["std"])
    features, _, _ = build(config, num_classes=0)
    with torch.no_grad():
        assert features.eval().embed(VIDEO).shape == (2, features.num_features)


def test_frames_are_averaged_over_timms_own_logits():
    model, _, _ = build(replace(CNN, temporal=Frames()))
    network = timm.create_model("test_resnet", num_classes=5).eval()
    network.load_state_dict(model.backbone.state_dict())
    with torch.no_grad():
        alone = torch.stack([network(VIDEO[:, :, t]) for t in range(4)]).mean(dim=0)
        torch.testing.assert_close(model.eval()(VIDEO), alone, rtol=1e-4, atol=1e-5)


def test_weights_follow_from_torchs_seed():
    first, second = build(CNN)[0].state_dict(), build(CNN)[0].state_dict()
    assert all(torch.equal(value, second[key]) for key, value in first.items())


@pytest.mark.parametrize(
    ("temporal", "trained"),
    [(Frames(), Frames()), (Shift(), Shift()), (Inflate(), Frames()), (Inflate(), Inflate())],
)
def test_a_file_of_weights_is_loaded_whatever_it_was_trained_with(tmp_path, temporal, trained):
    """Its classifier too, if the classes are as many."""
    before, _, _ = build(replace(CNN, temporal=trained))
    torch.save(before.state_dict(), tmp_path / "weights.pt")
    config = replace(CNN, temporal=temporal, pretrained=str(tmp_path / "weights.pt"))
    torch.manual_seed(1)
    after, _, said = build_video_model(config, num_classes=5, frames=4, size=32)
    assert "classifier included" in said
    with torch.no_grad():
        still = VIDEO[:, :, :1].expand(-1, -1, 4, -1, -1)
        wanted = before.eval()(still)
        torch.testing.assert_close(after.eval()(still), wanted, rtol=1e-3, atol=1e-4)


def test_dropout_is_where_it_belongs():
    """On each frame's features for a shift, on the clip's for I3D, before a ViT's classifier."""
    torch.manual_seed(0)
    for config in (CNN, replace(CNN, temporal=Inflate()), VIT):
        model, _, _ = build(replace(config, dropout=0.5))
        model.eval()
        with torch.no_grad():
            calm = model(VIDEO)
            for module in model.modules():
                if not isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                    module.training = True
            assert not torch.equal(model(VIDEO), model(VIDEO))
            assert not torch.equal(model(VIDEO), calm)


def test_small_pictures_keep_their_size_in_the_stem():
    """A 3×3 kernel with stride 1 and no pooling: 32² reach the first stage."""
    for name, stem in (("resnet18", "conv1"), ("test_efficientnet", "conv_stem")):
        model, _, _ = build(ModelConfig(name, Frames(), small_input=True))
        conv = getattr(model.backbone, stem)
        assert conv.kernel_size == (3, 3) and conv.stride == (1, 1)
        sizes = []
        first = model.backbone.layer1 if name == "resnet18" else model.backbone.blocks
        first.register_forward_pre_hook(lambda _, args, sizes=sizes: sizes.append(args[0].shape))
        with torch.no_grad():
            model.eval()(VIDEO)
        assert sizes[0][-2:] == (32, 32)


def test_the_encoder_of_a_masked_autoencoder_is_a_vit_without_class_token():
    network, _ = build_encoder(VIT, size=32)
    assert network.cls_token is None and network.patch_embed.num_patches == 16


REFUSED = [
    (replace(CNN, backbone="resnet5o"), {}, "no model 'resnet5o'; did you mean .*resnet50"),
    (replace(VIT, temporal=Shift()), {}, "VisionTransformer has no residual blocks .* to shift"),
    (replace(VIT, temporal=Inflate()), {}, "VisionTransformer has no residual blocks"),
    (
        replace(CNN, temporal=Joint()),
        {},
        "timm cannot make test_resnet .*joint attention needs a V",
    ),
    (replace(VIT, backbone="test_byobnet"), {}, "test_byobnet"),
    (replace(VIT, temporal=Frames(), partial_bn=True), {}, "no batch norms to freeze"),
    (replace(VIT, temporal=Joint(tubelet=2)), {"frames": 5}, "5 frames cannot be cut .* of 2"),
    (VIT, {"size": 36}, "--clip.size 36 is no multiple of the 8 pixels of a patch"),
    (replace(VIT, temporal=Frames()), {"size": 36}, "--clip.size 36 is no multiple of the 8 pix"),
    (replace(CNN, patch_size=8), {}, "timm cannot make test_resnet .*patch_size"),
    (replace(VIT, temporal=Frames(), small_input=True), {}, "a ViT takes --model.patch-size"),
    (replace(CNN, backbone="test_efficientnet", temporal=Shift(pool=True)), {}, "pooling"),
    (replace(CNN, pretrained="gone.pt"), {}, "gone.pt: no such file"),
]


@pytest.mark.parametrize(("config", "sizes", "words"), REFUSED)
def test_what_cannot_be_built_is_refused_in_one_line(config, sizes, words):
    with pytest.raises(ConfigError, match=words) as refused:
        build(config, **sizes)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (CNN, "needs a ViT with joint attention"),
        (replace(CNN, temporal=Joint()), "take a plain ViT"),
        (replace(VIT, backbone="vit_tinny"), "no model 'vit_tinny'"),
    ],
)
def test_what_cannot_be_an_encoder_is_refused_in_one_line(config, words):
    with pytest.raises(ConfigError, match=words) as refused:
        build_encoder(config, size=32)
    assert "\n" not in str(refused.value)


def test_an_encoders_pictures_are_whole_patches():
    with pytest.raises(ConfigError, match=r"--clip\.size 36"):
        build_encoder(VIT, size=36)


def test_weights_for_another_size_are_refused_with_both_shapes(tmp_path):
    """A deeper or wider network's file."""
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "other.pt")
    config = ModelConfig("resnet10t", Shift(), pretrained=str(tmp_path / "other.pt"))
    with pytest.raises(ConfigError, match=r"for another network: .* is \[.*\] there, \[.*\] here"):
        build(config)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ModelConfig(dropout=1.0), "--model.dropout 1.0"),
        (lambda: ModelConfig(drop_path=-0.1), "--model.drop-path"),
        (lambda: ModelConfig(patch_size=0), "--model.patch-size 0"),
        (lambda: ModelConfig(temporal=Joint(), partial_bn=True), "--model.partial-bn"),
        (lambda: Shift(div=1), "--model.temporal.div 1"),
        (lambda: Shift(every=0), "--model.temporal.every 0"),
        (lambda: Inflate(every=0), "--model.temporal.every 0"),
        (lambda: Joint(patch_dropout=1.0), "--model.temporal.patch-dropout"),
    ],
)
def test_settings_out_of_range_are_named_as_on_the_command_line(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
