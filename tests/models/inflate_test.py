"""Inflated networks against the 2-D networks they come from, and against 3-D layers throughout."""

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

from matinee.errors import ConfigError
from matinee.models.inflate import InflatedConv, InflatedModel, inflate, inflate_kernel


def image_network(name, **options):
    """In float64 and evaluation, every normalisation with numbers of its own."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **options).double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.running_var):
                nn.init.uniform_(tensor, 0.5, 1.5)
            for tensor in (module.bias, module.running_mean):
                nn.init.uniform_(tensor, -0.2, 0.2)
    return model


def inflated(name, frames, narrow=None, **how):
    """The same image network, inflated."""
    backbone = image_network(name, **(narrow or {}))
    names = inflate(backbone, frames, **how)
    return InflatedModel(backbone, frames).eval(), names


NARROW = {"channels": (8, 16, 32, 64)}  # a ResNet's, for quick tests


def clip(frames, size=32, batch=1):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, 3, frames, size, size, generator=generator, dtype=torch.float64)


def test_an_inflated_convolution_is_the_sum_of_image_convolutions_of_three_frames():
    clips, frames = 2, 5
    conv = nn.Conv2d(4, 6, (3, 5), stride=2, padding=(1, 2), groups=2).double()
    solid = InflatedConv(conv, frames)
    nn.init.normal_(solid.weight)
    x = torch.randn(clips * frames, 4, 7, 8, dtype=torch.float64)
    given = x.view(clips, frames, 4, 7, 8)
    out = solid(x)
    for b in range(clips):
        for t in range(frames):
            wanted = conv.bias.view(1, 6, 1, 1)
            for tap, source in enumerate((t - 1, t, t + 1)):
                if 0 <= source < frames:
                    image = given[b, source][None]
                    kernel = solid.weight[:, :, tap]
                    wanted = wanted + F.conv2d(image, kernel, None, 2, (1, 2), 1, 2)
            torch.testing.assert_close(out[b * frames + t], wanted[0])


def test_pixels_stay_in_channels_last_order():
    """Else every inflated convolution would copy its input and its output."""
    solid = InflatedConv(nn.Conv2d(16, 16, 3, padding=1), frames=4)
    x = torch.randn(8, 16, 9, 9)
    out = solid(x.contiguous(memory_format=torch.channels_last))
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out, solid(x))


def test_kernels_are_the_image_kernel_in_the_middle_or_a_third_on_each_frame():
    image = torch.randn(2, 3, 3, 3)
    center, average = inflate_kernel(image, "center"), inflate_kernel(image, "average")
    assert torch.equal(center[:, :, 1], image) and not center[:, :, ::2].any()
    for tap in range(3):
        torch.testing.assert_close(average[:, :, tap], image / 3)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [("resnet18", "3x3x3"), ("resnet50", "3x3x3"), ("resnet50", "3x1x1"),
     ("mobilenetv2_050", "3x3x3"), ("mobilenetv3_small_050", "3x1x1"),
     ("tf_efficientnet_lite0", "3x3x3")],
)  # fmt: skip
def test_a_still_video_gives_the_image_networks_features_and_logits(name, kernel):
    """timm's own forward on the image. Odd sizes: TensorFlow's padding is then uneven."""
    image = clip(1, size=37)
    network, (model, _) = image_network(name), inflated(name, 3, kernel=kernel)
    video = image.expand(-1, -1, 3, -1, -1)
    features = network.forward_head(network.forward_features(image[:, :, 0]), pre_logits=True)
    assert model.num_features == features.shape[1]
    torch.testing.assert_close(model.embed(video), features)
    torch.testing.assert_close(model(video), network(image[:, :, 0]))


def test_centre_initialised_each_frame_is_seen_alone_at_first():
    """Frame by frame, on frames that differ; other taps then change that."""
    network, (model, names) = image_network("resnet18"), inflated("resnet18", 3, kernel="3x3x3")
    frames = clip(3)[0].transpose(0, 1)
    torch.testing.assert_close(model.backbone(frames), network(frames))
    nn.init.normal_(model.backbone.get_submodule(names[0]).weight)
    assert not torch.allclose(model.backbone(frames), network(frames))


def test_averaging_gives_the_image_networks_output_away_from_the_ends_only():
    """Each of the 4 inflated convolutions carries the zeros beyond the ends one frame inwards."""
    network = image_network("resnet10t")
    model, names = inflated("resnet10t", 11, kernel="3x3x3", init="average")
    assert len(names) == 4
    image = clip(1)[:, :, 0]
    frames, wanted = model.backbone(image.expand(11, -1, -1, -1)), network(image)[0]
    same = [torch.allclose(row, wanted, rtol=1e-9, atol=1e-9) for row in frames]
    assert same == [4 <= t <= 6 for t in range(11)]


def test_every_second_block_of_a_stage_is_inflated_from_its_first():
    """ResNet-50 has stages of 3, 4, 6 and 3 blocks."""
    _, all_of_them = inflated("resnet50", 4, NARROW, kernel="3x1x1")
    _, second = inflated("resnet50", 4, NARROW, kernel="3x3x3", every=2)
    stages = ((1, 3), (2, 4), (3, 6), (4, 3))
    assert all_of_them == [f"layer{s}.{i}.conv1" for s, n in stages for i in range(n)]
    assert second == [f"layer{s}.{i}.conv2" for s, n in stages for i in range(0, n, 2)]


def test_gradient_reaches_every_tap():
    model, names = inflated("resnet50", 3, NARROW, kernel="3x1x1")
    model(clip(3)).square().sum().backward()
    for name in names:
        gradient = model.backbone.get_submodule(name).weight.grad
        assert all(gradient[:, :, tap].abs().max() > 0 for tap in range(3)), name


@pytest.mark.parametrize(("name", "kernel"), [("resnet18", "3x3x3"), ("resnet26", "3x1x1")])
def test_training_is_that_of_a_network_with_3d_layers_throughout(name, kernel):
    """Every layer as its 3-D kind on [B, C, T, H, W]: logits, statistics and gradients."""
    model, names = inflated(name, 3, NARROW, kernel=kernel)
    for conv in names:
        weight = model.backbone.get_submodule(conv).weight
        nn.init.normal_(weight, std=weight[0].numel() ** -0.5)
    solid = _with_3d_layers(image_network(name, **NARROW), model.backbone)
    video = clip(3, batch=2)
    ours, theirs = model.train()(video), solid.train()(video)
    torch.testing.assert_close(ours, theirs)
    for logits in (ours, theirs):
        logits.square().sum().backward()
    statistics = dict(solid.named_buffers())
    for key, value in model.backbone.named_buffers():
        if "running_mean" in key:
            torch.testing.assert_close(value, statistics[key])
    gradients = {key: value.grad for key, value in solid.named_parameters()}
    for key, value in model.backbone.named_parameters():
        torch.testing.assert_close(value.grad, gradients[key].view_as(value), msg=key)


def _with_3d_layers(network, source):
    """timm's ResNet on [B, C, T, H, W] with the numbers of `source`."""
    for name, module in list(network.named_modules()):
        new = None
        if isinstance(module, nn.Conv2d):
            weight = source.get_submodule(name).weight
            weight = weight if weight.dim() == 5 else weight.unsqueeze(2)
            new = nn.Conv3d(
                module.in_channels, module.out_channels, weight.shape[2:], bias=False,
                stride=(1, *module.stride), padding=(weight.shape[2] // 2, *module.padding),
            )  # fmt: skip
            new.weight = nn.Parameter(weight.detach().clone())
        elif isinstance(module, nn.BatchNorm2d):
            new = nn.BatchNorm3d(module.num_features).double()
            new.load_state_dict(module.state_dict())
        elif isinstance(module, nn.MaxPool2d):
            new = nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1))
        elif name == "global_pool":
            new = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten())
        if new is not None:
            parent, _, own = name.rpartition(".")
            setattr(network.get_submodule(parent), own, new)
    return network


def test_dropout_comes_after_the_average_over_time_and_not_into_the_features():
    """Kept features are doubled, the others zero: for a whole clip, not a frame."""
    backbone = image_network("resnet10t")
    inflate(backbone, 2, kernel="3x3x3")
    model = InflatedModel(backbone, 2, dropout=0.5)
    backbone.eval().reset_classifier(0)
    video = clip(2)
    features, dropped = model.embed(video), model(video)
    torch.testing.assert_close(features, model.eval()(video))
    ratio = (dropped / features)[features > 0]
    assert 0.3 < (ratio == 0).double().mean() < 0.7
    torch.testing.assert_close(ratio, 2.0 * (ratio != 0).double())


@pytest.mark.parametrize(
    ("name", "kernel", "words"),
    [
        ("vit_tiny_patch16_224", "3x3x3", "VisionTransformer has no residual blocks with wide"),
        ("densenet121", "3x1x1", "DenseNet has no residual blocks with 1×1"),
        ("resnet18", "3x1x1", "no 1×1 convolution to become 3×1×1: choose .* 3x3x3, or"),
        ("convnext_tiny", "3x1x1", "no 1×1 convolution"),
        ("skresnet18", "3x1x1", "no 1×1 convolution"),
        ("nf_resnet50", "3x3x3", r"stages.0.0.conv2 of NormFreeNet is a ScaledStdConv2d"),
    ],
)
def test_a_network_that_cannot_be_inflated_is_refused_and_left_alone(name, kernel, words):
    with torch.device("meta"):
        network = timm.create_model(name)
    with pytest.raises(ConfigError, match=words):
        inflate(network, 8, kernel=kernel)
    assert not any(isinstance(module, nn.Conv3d) for module in network.modules())


def test_a_network_that_classifies_feature_maps_is_refused():
    with torch.device("meta"):
        network = timm.create_model("resnetv2_50")
    with pytest.raises(ConfigError, match="classifier of this ResNetV2 is a Conv2d"):
        InflatedModel(network, 8)
