"""Channels innermost: the same numbers, in another order in memory."""

import copy

import pytest
import torch
from torch import nn

from matinee.models.build import build_video_model
from matinee.models.config import Frames, Inflate, Joint, ModelConfig, Shift
from matinee.models.dual import DualEncoder
from matinee.models.layout import to_channels_last
from matinee.models.text import ClipText

# Of fewer clips, PyTorch computes some 3-D convolutions on one core in a way of its own.
VIDEO = torch.randn(16, 3, 4, 32, 32, generator=torch.Generator().manual_seed(0))
FORMATS = {nn.Conv2d: torch.channels_last, nn.Conv3d: torch.channels_last_3d}
CONFIGS = {
    "frames": ModelConfig("test_efficientnet", Frames(), dropout=0.0),
    "shift": ModelConfig("test_resnet", Shift(pool=True, non_local=True), dropout=0.0),
    "3x3x3": ModelConfig("test_resnet", Inflate("3x3x3"), dropout=0.0),
    "3x1x1": ModelConfig("test_efficientnet", Inflate("3x1x1"), dropout=0.0),
}


def network(kind):
    torch.manual_seed(0)
    return build_video_model(CONFIGS[kind], num_classes=3, frames=4, size=32)[0]


def inputs_of_convolutions(model):
    """Memory formats that the 2-D convolutions with several channels and pixels are given."""
    seen = []

    def note(_module, args):
        x = args[0]
        if x.ndim == 4 and x.shape[1] > 1 and x.shape[2] * x.shape[3] > 1:
            seen.append(x.is_contiguous(memory_format=torch.channels_last))

    hooks = [m.register_forward_pre_hook(note) for m in model.modules() if type(m) is nn.Conv2d]
    with torch.no_grad():
        model(VIDEO)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("kind", CONFIGS)
def test_numbers_are_the_same_and_every_convolution_reads_channels_innermost(kind, weights):
    plain = network(kind).train()
    moved = copy.deepcopy(plain)
    to_channels_last(moved, weights=weights)
    assert list(moved.state_dict()) == list(plain.state_dict())
    for module in moved.modules():
        if type(module) in FORMATS and weights:
            assert module.weight.is_contiguous(memory_format=FORMATS[type(module)])
        elif isinstance(module, nn.Conv2d | nn.Conv3d) and not weights:
            assert module.weight.is_contiguous()
    results = []
    for model in (plain.double(), moved.double()):
        logits = model(VIDEO[:2].double())
        logits.square().sum().backward()
        results.append([logits, *(p.grad for p in model.parameters())])
    for before, after in zip(*results, strict=True):
        torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9)
    assert not any(inputs_of_convolutions(plain.float())[:1])
    assert all(inputs_of_convolutions(moved.float()))


def test_a_vits_patches_and_a_text_tower_stay_as_they_are():
    """A patch kernel is used as a matrix: another order would be copied back in every step."""
    vit = ModelConfig("test_vit", Joint(tubelet=2), patch_size=8)
    video = build_video_model(vit, num_classes=0, frames=4, size=32)[0]
    dual = DualEncoder(video, ClipText(width=8, heads=2, layers=1), embed_dim=4)
    to_channels_last(dual)
    assert all(p.is_contiguous() for p in dual.parameters())
    cnn = build_video_model(CONFIGS["shift"], num_classes=0, frames=4, size=32)[0]
    dual.video = cnn
    to_channels_last(dual)
    assert cnn.channels_last and not cnn.backbone.layer1[0].conv1.conv.weight.is_contiguous()
