"""Parameters and multiply-adds against arithmetic by hand and published numbers."""

import json

import pytest
import timm
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

from matinee.cli import models as command
from matinee.errors import ConfigError
from matinee.models.base import VideoModel
from matinee.models.frames import FrameModel
from matinee.models.inflate import InflatedModel, inflate
from matinee.models.measure import model_cost
from matinee.models.shift import add_temporal_shift


class Plain(VideoModel):
    """Any network of clips."""

    def __init__(self, network, frames):
        super().__init__()
        self.network, self.frames = network, frames

    def embed(self, video_BCTHW):
        return self.network(video_BCTHW)

    def forward(self, video_BCTHW):
        return self.embed(video_BCTHW)


def on_frames(name, frames, **options):
    with torch.device("meta"):
        return FrameModel(timm.create_model(name, **options), frames)


def test_a_small_network_costs_what_one_counts_by_hand():
    """3 → 8 channels, 3 × 3 × 3 taps, stride 2 in space, two groups behind, 5 classes."""
    network = nn.Sequential(
        nn.Conv3d(3, 8, 3, stride=(1, 2, 2), padding=1), nn.BatchNorm3d(8), nn.ReLU(),
        nn.Conv3d(8, 4, (1, 1, 1), groups=2, bias=False), nn.AdaptiveAvgPool3d(1), nn.Flatten(),
        nn.Linear(4, 5),
    )  # fmt: skip
    cost = model_cost(Plain(network, frames=6), size=10)
    assert cost.parameters == (3 * 8 * 27 + 8) + 2 * 8 + (4 * 4) * 2 // 2 + (4 * 5 + 5)
    multiply_adds = 3 * 8 * 27 * (6 * 5 * 5) + 4 * 4 * (6 * 5 * 5) + 4 * 5
    assert cost.gmac * 1e9 == pytest.approx(multiply_adds)
    assert cost.gflops == 2 * cost.gmac


def test_attention_is_counted():
    """N² · D for the scores and as much for the sums, whatever kernel would compute them."""

    class Attention(nn.Module):
        def forward(self, video):
            tokens = video.flatten(2).transpose(1, 2)[:, None]  # [1, 1, N, 3]
            return F.scaled_dot_product_attention(tokens, tokens, tokens)

    cost = model_cost(Plain(Attention(), frames=4), size=6)
    assert cost.gmac * 1e9 == pytest.approx(2 * (4 * 6 * 6) ** 2 * 3)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("resnet50", torchvision.models.ResNet50_Weights),
        ("resnext50_32x4d", torchvision.models.ResNeXt50_32X4D_Weights),
        ("mobilenetv2_100", torchvision.models.MobileNet_V2_Weights),
        ("efficientnet_b0", torchvision.models.EfficientNet_B0_Weights),
        ("vit_base_patch16_224", torchvision.models.ViT_B_16_Weights),
    ],
)
def test_one_frame_costs_what_is_published_of_the_image_network(name, weights):
    """Torchvision's table of its own networks: parameters, and 10⁹ multiply-adds at 224²."""
    published = weights.IMAGENET1K_V1.meta
    cost = model_cost(on_frames(name, frames=1), size=224)
    assert cost.parameters == published["num_params"]
    assert cost.gmac == pytest.approx(published["_ops"], abs=1e-3)


def test_a_3d_network_costs_what_is_published():
    """ResNet3D-18 on 16 frames of 112²."""
    published = torchvision.models.video.R3D_18_Weights.KINETICS400_V1.meta
    with torch.device("meta"):
        network = torchvision.models.video.r3d_18()
    cost = model_cost(Plain(network, frames=16), size=112)
    assert cost.parameters == published["num_params"]
    assert cost.gmac == pytest.approx(published["_ops"], abs=1e-3)


def test_i3ds_cost_what_resnet_50s_table_says_beyond_tsn_and_tsm_nothing():
    """Two more taps for each inflated convolution. Source: arXiv 1512.03385, Table 1."""
    stages = [(64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)]  # width, blocks, output size
    wide = reduce = wide_macs = reduce_macs = 0
    inputs = 64
    for width, blocks, size in stages:
        for block in range(blocks):
            # The first block of a stage halves the size in its 3 × 3, so its 1 × 1 sees the double.
            before = size if block or width == 64 else 2 * size
            wide += 9 * width * width
            wide_macs += 9 * width * width * size * size
            reduce += inputs * width
            reduce_macs += inputs * width * before * before
            inputs = 4 * width
    tsn = model_cost(on_frames("resnet50", 8, num_classes=400), 224)
    assert (tsn.parameters, tsn.gmac) == (25_557_032 - 600 * 2049, pytest.approx(32.7, abs=0.05))
    shifted = on_frames("resnet50", 8, num_classes=400)
    add_temporal_shift(shifted.backbone, 8)
    assert model_cost(shifted, 224) == tsn
    for kernel, weights, macs in (("3x3x3", wide, wide_macs), ("3x1x1", reduce, reduce_macs)):
        backbone = on_frames("resnet50", 8, num_classes=400).backbone
        inflate(backbone, 8, kernel=kernel)
        cost = model_cost(InflatedModel(backbone, 8), 224)
        assert cost.parameters == tsn.parameters + 2 * weights
        # The classifier works once on a clip instead of once on each frame.
        assert cost.gmac * 1e9 == pytest.approx(tsn.gmac * 1e9 + 2 * 8 * macs - 7 * 2048 * 400)


def test_the_model_stays_as_it_was():
    """Modes of every module, numbers, device."""
    model = Plain(nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4), nn.Dropout()), 2).train()
    model.network[1].eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model_cost(model, 4)
    assert [module.training for module in model.network] == [True, False, True]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_what_training_leaves_out_is_counted():
    """As patch dropout does: the cost is that of evaluation."""

    class Half(nn.Conv3d):
        def forward(self, video):
            return super().forward(video[:, :, ::2] if self.training else video)

    cost = model_cost(Plain(Half(3, 4, 1), frames=2).train(), size=5)
    assert cost.gmac * 1e9 == pytest.approx(3 * 4 * 2 * 5 * 5)


def test_the_command_lists_each_way_with_its_cost_or_the_reason_why_not(capsys):
    """Parameters against networks that are really made."""
    options = ["--frames", "2", "--size", "64", "--classes", "5", "--json", "-"]
    assert command.main(["resnet10t", *options]) == 0
    facts = json.loads(capsys.readouterr().out)
    rows = {(row["temporal"], row.get("kernel")): row for row in facts["models"]}
    assert set(rows) == {("frames", None), ("shift", None), ("inflate", "3x3x3")}
    network = timm.create_model("resnet10t", num_classes=5)
    count = sum(weight.numel() for weight in network.parameters())
    assert rows["frames", None]["parameters"] == rows["shift", None]["parameters"] == count
    inflate(network, 2, kernel="3x3x3")
    count = sum(weight.numel() for weight in network.parameters())
    assert rows["inflate", "3x3x3"]["parameters"] == count
    reasons = {row["temporal"]: row["reason"] for row in facts["impossible"]}
    assert set(reasons) == {"inflate", "joint"} and "no 1×1 convolution" in reasons["inflate"]


def test_the_command_cuts_long_lists_aloud_and_says_what_came_close(capsys, monkeypatch):
    monkeypatch.setattr(command, "MOST", 1)
    assert command.main(["mobilenetv3_small_*", "--size", "64"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("inflate 3x3x3") == 1 and "1 of the 3 networks that match" in shown
    with pytest.raises(ConfigError, match=r"no model that matches 'resnet1'; did you mean resnet1"):
        command.main(["resnet1"])
    with pytest.raises(ConfigError, match=r"--frames 0: at least 1"):
        command.main(["resnet18", "--frames", "0"])
