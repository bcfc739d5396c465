"""Compiled networks against themselves uncompiled.

Except in one test the graphs that PyTorch captures are run as they are, without generating code for
them: that takes seconds a kernel, and is PyTorch's own affair.
"""

import copy
import shutil

import pytest
import timm
import torch
from timm.models.resnet import BasicBlock, ResNet
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.utils import counters

from matinee.models.base import VideoModel
from matinee.models.compile import compile_model
from matinee.models.dual import DualEncoder
from matinee.models.frames import FrameModel
from matinee.models.joint import JointModel
from matinee.models.layout import to_channels_last
from matinee.models.masked import MaskedAutoencoder
from matinee.models.masks import tube_mask
from matinee.models.recompute import recompute_blocks
from matinee.models.shift import add_temporal_shift
from matinee.models.text import ClipText

VIDEO = torch.randn(2, 3, 4, 16, 16, generator=torch.Generator().manual_seed(0))
SMALL = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "num_heads": 3, "depth": 1}


def vit(**changes):
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", **{"num_classes": 3, **SMALL, **changes})


def shifted():
    torch.manual_seed(0)
    backbone = ResNet(BasicBlock, [1] * 4, channels=(8, 8, 16, 16), num_classes=3)
    add_temporal_shift(backbone, 4)
    model = FrameModel(backbone, 4)
    to_channels_last(model)
    return model


def masked():
    encoder = vit(class_token=False, global_pool="avg", fc_norm=False, num_classes=0)
    return MaskedAutoencoder(
        encoder, frames=4, mean=[0.5] * 3, std=[0.5] * 3, decoder_depth=1, decoder_width=12,
        decoder_heads=2,
    )  # fmt: skip


def dual():
    video = JointModel(vit(num_classes=0), frames=4)
    return DualEncoder(video, ClipText(width=8, heads=2, layers=1), embed_dim=4)


NETWORKS = {
    "shift": shifted,
    "joint": lambda: JointModel(vit(), frames=4),
    "masked": masked,
    "dual": dual,
}


def loss_of(model):
    if isinstance(model, MaskedAutoencoder):
        return model(VIDEO, tube_mask(2, 4, 0.5, seeds=[1, 2]), counts=(4, 4))[0].sum()
    if isinstance(model, DualEncoder):
        texts = model.embed_text(torch.arange(2 * 77).view(2, 77))
        return (model.embed_video(VIDEO) @ texts.T).logsumexp(1).sum()
    return model(VIDEO).square().sum()


@pytest.fixture
def captured(monkeypatch):
    """Runs what is captured without compiling it; counts graphs and breaks from 0."""
    monkeypatch.setattr(
        "torch._inductor.compile_fx.compile_fx", lambda graph, inputs, **_: aot_eager(graph, inputs)
    )
    torch._dynamo.reset()
    counters.clear()
    yield counters
    torch._dynamo.reset()


def compare(plain, compiled):
    losses = [loss_of(plain), loss_of(compiled)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-4)
    for loss in losses:
        loss.backward()
    pairs = zip(plain.named_parameters(), compiled.named_parameters(), strict=True)
    for (name, one), (other_name, other) in pairs:
        assert name == other_name and (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5)
    for one, other in zip(plain.buffers(), compiled.buffers(), strict=True):
        torch.testing.assert_close(other, one)


@pytest.mark.parametrize("kind", NETWORKS)
def test_each_network_is_one_graph_with_the_same_gradients_also_when_recomputing(kind, captured):
    plain = NETWORKS[kind]().train()
    model = copy.deepcopy(plain)
    recompute_blocks(model, 1)
    compile_model(model, "default")
    assert list(model.state_dict()) == list(plain.state_dict())
    compare(plain, model)
    assert not captured["graph_break"], captured["graph_break"]
    assert captured["stats"]["unique_graphs"] == (2 if kind == "dual" else 1)


def test_switching_to_evaluation_and_back_takes_effect(captured):
    plain = shifted()
    model = copy.deepcopy(plain)
    compile_model(model, "default")
    for mode in (True, False, True):
        want, got = plain.train(mode)(VIDEO), model.train(mode)(VIDEO)
        torch.testing.assert_close(got, want)
    assert captured["stats"]["unique_graphs"] == 2


class MeanColour(VideoModel):
    """A network of so few operations that code for it is soon made."""

    def __init__(self) -> None:
        super().__init__()
        self.frames, self.num_features = 4, 3
        self.layer = nn.Linear(3, 2)

    def forward(self, video_BCTHW, *, features=False):
        pooled = video_BCTHW.mean(dim=(2, 3, 4))
        return pooled if features else self.layer(pooled).tanh()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler (g++)")
def test_generated_code_computes_the_same():
    torch.manual_seed(0)
    plain = MeanColour()
    model = copy.deepcopy(plain)
    compile_model(model, "default")
    compare(plain, model)
