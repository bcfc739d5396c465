"""Temporal shift against its definition, on several timm networks."""

import pytest
import timm
import torch

from matinee.errors import ConfigError
from matinee.models.classifier import ModelConfig, VideoClassifier, build_classifier
from matinee.models.shift import ShiftedConv, add_temporal_shift, temporal_shift


def test_shift_moves_an_eighth_each_way_and_pads_with_zeros():
    """Element by element, in a loop."""
    clips, frames, channels = 2, 5, 16
    x = torch.randn(clips * frames, channels, 3, 4)
    shifted = temporal_shift(x, frames).view(clips, frames, channels, 3, 4)
    given = x.view(clips, frames, channels, 3, 4)
    for b in range(clips):
        for t in range(frames):
            for c in range(channels):
                source = t + 1 if c < 2 else t - 1 if c < 4 else t
                inside = 0 <= source < frames
                wanted = given[b, source, c] if inside else torch.zeros(3, 4)
                assert torch.equal(shifted[b, t, c], wanted)


def test_shift_leaves_its_input_and_works_in_channels_last():
    """Not in place, same values in either layout."""
    x = torch.randn(8, 16, 6, 6)
    before = x.clone()
    plain = temporal_shift(x, 4)
    last = temporal_shift(x.contiguous(memory_format=torch.channels_last), 4)
    assert torch.equal(x, before) and torch.equal(plain, last)
    assert last.is_contiguous(memory_format=torch.channels_last)


def test_shift_has_the_gradient_of_a_permutation():
    """Checked numerically in float64."""
    x = torch.randn(3, 8, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: temporal_shift(v, 3, 4), (x,))


@pytest.mark.parametrize(
    ("name", "count"),
    [("resnet18", 8), ("resnet50", 16), ("resnext50_32x4d", 16), ("efficientnet_b0", 9),
     ("mobilenetv3_small_100", 6), ("convnext_atto", 12), ("regnety_002", 13)],
)  # fmt: skip
def test_every_residual_block_with_a_shortcut_is_shifted_once(name, count):
    """The count is the number of such blocks in the papers' tables; parameters stay the same."""
    model = timm.create_model(name, num_classes=5)
    parameters = sum(p.numel() for p in model.parameters())
    wrapped = add_temporal_shift(model, frames=4)
    assert len(wrapped) == count == sum(isinstance(m, ShiftedConv) for m in model.modules())
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model.eval()(torch.randn(4, 3, 64, 64)).shape == (4, 5)


def test_resnet_shifts_the_input_of_the_residual_branch_only():
    """One block by hand: shortcut(x) + conv2(relu(bn1(conv1(shift(x)))))."""
    model = timm.create_model("resnet18", num_classes=2).eval()
    block = model.layer1[0]
    x = torch.randn(8, 64, 8, 8)
    add_temporal_shift(model, frames=4)
    inner = block.act1(block.bn1(block.conv1.conv(temporal_shift(x, 4))))
    wanted = block.act2(block.bn2(block.conv2(inner)) + x)
    torch.testing.assert_close(block(x), wanted)


def test_a_network_without_residual_convolutions_is_refused():
    """A plain ViT has nothing to shift."""
    with pytest.raises(ConfigError, match="no residual blocks"):
        add_temporal_shift(timm.create_model("vit_tiny_patch16_224"), frames=4)


def test_without_shift_the_order_of_frames_does_not_matter_and_with_it_does():
    """The claim the demo rests on."""
    torch.manual_seed(0)
    video = torch.randn(2, 3, 4, 32, 32)
    for shift, same in (("none", True), ("residual", False)):
        config = ModelConfig(backbone="resnet10t", shift=shift)
        model, _, _ = build_classifier(config, num_classes=3, frames=4)
        for module in model.modules():  # timm starts residual branches at zero
            if isinstance(module, torch.nn.BatchNorm2d):
                torch.nn.init.ones_(module.weight)
        model.eval()
        assert torch.allclose(model(video), model(video.flip(2)), atol=1e-5) is same


def test_logits_are_the_mean_over_frames():
    """Against the backbone called frame by frame."""
    backbone = timm.create_model("resnet10t", num_classes=3).eval()
    video = torch.randn(2, 3, 4, 32, 32)
    each = torch.stack([backbone(video[:, :, t]) for t in range(4)])
    torch.testing.assert_close(VideoClassifier(backbone, 4)(video), each.mean(0), atol=1e-5, rtol=0)


def test_an_unknown_backbone_is_refused_with_a_suggestion():
    """Close names are offered."""
    with pytest.raises(ConfigError, match=r"no model 'resnet51'; did you mean .*resnet"):
        build_classifier(ModelConfig(backbone="resnet51"), num_classes=2, frames=4)
