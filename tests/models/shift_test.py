"""Temporal shift, pooling and partial BN against their definitions, on several timm networks."""

import copy

import pytest
import timm
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from matinee.errors import ConfigError
from matinee.models.batch_norm import freeze_batch_norm
from matinee.models.build import build_video_model
from matinee.models.config import Frames, ModelConfig, Shift
from matinee.models.frames import FrameModel
from matinee.models.non_local import NonLocal, add_non_local
from matinee.models.shift import (
    ShiftedBlock,
    ShiftedConv,
    TemporalPool,
    TemporalShift,
    add_temporal_pooling,
    add_temporal_shift,
    temporal_shift,
)


def shift_by_loop(x, frames, sources):
    """`sources`: frame offset of each channel, 0 where not given."""
    out = torch.zeros_like(x)
    for row in range(x.shape[0]):
        for channel in range(x.shape[1]):
            offset = sources.get(channel, 0)
            if 0 <= row % frames + offset < frames:
                out[row, channel] = x[row + offset, channel]
    return out


def randomise_norms(model):
    """timm starts the last norm of each residual branch at zero, which would hide the branch."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
    return model


def frames_by_name(model):
    return {name: m.frames for name, m in model.named_modules() if isinstance(m, TemporalShift)}


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


def test_causal_shift_takes_the_first_eighth_from_the_previous_frame():
    """As the published online network does; nothing comes from later frames."""
    x = torch.randn(10, 16, 3, 4)
    wanted = shift_by_loop(x, 5, {0: -1, 1: -1})
    assert torch.equal(temporal_shift(x, 5, causal=True), wanted)
    last = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(temporal_shift(last, 5, causal=True), wanted)


def test_in_place_shift_reaches_the_shortcut_too():
    """Both blocks by hand: the whole block, with and without downsampling, on shifted input."""
    model = randomise_norms(timm.create_model("resnet18", num_classes=2)).eval()
    plain = [model.layer1[0], model.layer2[0]]
    names = add_temporal_shift(model, frames=4, placement="in-place")
    assert len(names) == 8 == sum(isinstance(m, ShiftedBlock) for m in model.modules())
    assert names[:3] == ["layer1.0", "layer1.1", "layer2.0"]
    for block, shifted in zip(plain, (model.layer1[0], model.layer2[0]), strict=True):
        x = torch.randn(8, 64, 8, 8)
        eighths = {c: 1 if c < 8 else -1 for c in range(16)}
        assert torch.equal(shifted(x), block(shift_by_loop(x, 4, eighths)))


def test_placements_differ_only_in_what_the_shortcut_carries():
    """in-place minus residual, before the last activation, is shift(x) - x."""
    block = randomise_norms(timm.create_model("resnet18", num_classes=2)).eval().layer1[0]
    block.act2 = nn.Identity()
    x = torch.randn(8, 64, 8, 8)
    in_place = ShiftedBlock(block, TemporalShift(4))(x)
    block.conv1 = ShiftedConv(block.conv1, TemporalShift(4))
    torch.testing.assert_close(in_place - block(x), temporal_shift(x, 4) - x)


def test_state_dict_keys_are_the_documented_ones():
    """`conv` around a convolution, `block` around a block; causal or not, no tensor is new."""
    plain = timm.create_model("test_resnet").state_dict().keys()
    residual, in_place = timm.create_model("test_resnet"), timm.create_model("test_resnet")
    add_temporal_shift(residual, 4, causal=True)
    add_temporal_shift(in_place, 4, placement="in-place")
    assert "layer1.0.conv1.conv.weight" in residual.state_dict()
    assert {k.replace(".conv1.conv.", ".conv1.") for k in residual.state_dict()} == set(plain)
    assert {k.replace(".block.", ".") for k in in_place.state_dict()} == set(plain)


@pytest.mark.parametrize(
    ("name", "placement", "every", "count"),
    [("resnet50", "residual", None, 16), ("resnet101", "residual", None, 18),
     ("resnet152", "residual", None, 26), ("resnet101", "in-place", None, 33),
     ("resnet101", "residual", 1, 33), ("resnet50", "residual", 2, 2 + 2 + 3 + 2),
     ("resnet50", "in-place", 3, 1 + 2 + 2 + 1), ("mobilenetv2_100", "residual", 2, 6)],
)  # fmt: skip
def test_every_nth_block_of_each_stage(name, placement, every, count):
    """From the papers' stages: 3-4-6-3, 3-4-23-3, 3-8-36-3; MobileNetV2 1-2-3-2-2 shortcuts."""
    with torch.device("meta"):
        model = timm.create_model(name)
    wrapped = add_temporal_shift(model, 8, placement=placement, every=every)
    assert len(wrapped) == count
    assert all(isinstance(model.get_submodule(w), ShiftedConv | ShiftedBlock) for w in wrapped)
    if name == "resnet101" and count == 18:
        assert wrapped[:4] == [f"layer{n}.conv1" for n in ("1.0", "1.2", "2.0", "2.2")]


@pytest.mark.parametrize(
    "name", ["resnet50", "resnext50_32x4d", "mobilenetv2_100", "mobilenetv3_small_100",
             "efficientnet_b0"]
)  # fmt: skip
def test_shift_adds_no_parameters_and_no_flops(name):
    """Against torch's counter on the same network without shift."""
    with torch.device("meta"):
        plain, images = timm.create_model(name).eval(), torch.empty(4, 3, 64, 64)
    counts = []
    for placement, causal in ((None, False), ("residual", False), ("in-place", True)):
        model = copy.deepcopy(plain)
        if placement:
            assert add_temporal_shift(model, 4, placement=placement, causal=causal)
        with FlopCounterMode(display=False) as flops, torch.no_grad():
            assert model(images).shape == (4, 1000)
        counts.append((flops.get_total_flops(), sum(p.numel() for p in model.parameters())))
    assert counts[0] == counts[1] == counts[2] and counts[0][0] > 0


@pytest.mark.parametrize("name", ["test_resnet", "resnext50_32x4d", "mobilenetv2_035",
                                  "mobilenetv3_small_050", "efficientnet_b0"])  # fmt: skip
@pytest.mark.parametrize("placement", ["residual", "in-place"])
def test_one_shifted_block_looks_one_frame_each_way(name, placement):
    """A changed frame then changes itself and its neighbours only."""
    tiny = {"layers": [1, 1, 1, 1]} if name.startswith("resnext") else {}
    model = randomise_norms(timm.create_model(name, num_classes=3, **tiny)).eval().double()
    add_temporal_shift(model, 6, placement=placement)
    for path in list(frames_by_name(model))[1:]:
        model.set_submodule(path, nn.Identity())
    images = torch.randn(6, 3, 32, 32, dtype=torch.float64)
    changed = images.clone()
    changed[2] += 1
    with torch.no_grad():
        differs = (model(images) - model(changed)).abs().amax(dim=1) > 1e-9
    assert differs.tolist() == [False, True, True, True, False, False]


@pytest.mark.parametrize("frames", [2, 5, 8])
def test_pooling_is_the_maximum_of_three_frames_at_every_second(frames):
    """In a loop; an odd number of frames keeps the last one. Either memory layout."""
    x = torch.randn(2 * frames, 8, 3, 4)
    clips = x.view(2, frames, 8, 3, 4)
    wanted = torch.stack(
        [clips[:, max(t - 1, 0) : t + 2].amax(dim=1) for t in range(0, frames, 2)], dim=1
    ).flatten(0, 1)
    assert torch.equal(TemporalPool(frames)(x), wanted)
    last = TemporalPool(frames)(x.contiguous(memory_format=torch.channels_last))
    assert torch.equal(last, wanted) and last.is_contiguous(memory_format=torch.channels_last)


def test_modules_after_pooling_see_half_the_frames():
    """Shift of stage 1 over 5 frames, of later stages over 3; the network by hand agrees."""
    model = randomise_norms(timm.create_model("resnet18", num_classes=3)).eval()
    keys = set(model.state_dict())
    add_temporal_pooling(model, 5)
    assert set(model.state_dict()) == keys
    images = torch.randn(2 * 5, 3, 32, 32)
    with torch.no_grad():
        x = model.layer1[:2](model.maxpool(model.act1(model.bn1(model.conv1(images)))))
        x = x.view(2, 5, *x.shape[1:])
        x = torch.stack([x[:, :2].amax(1), x[:, 1:4].amax(1), x[:, 3:].amax(1)], dim=1)
        wanted = model.fc(
            model.global_pool(model.layer4(model.layer3(model.layer2(x.flatten(0, 1)))))
        )
        torch.testing.assert_close(model(images), wanted)
    add_temporal_shift(model, 5)
    frames = frames_by_name(model)
    assert {t for name, t in frames.items() if name.startswith("layer1")} == {5}
    assert {t for name, t in frames.items() if not name.startswith("layer1")} == {3}
    assert model(images).shape == (2 * 3, 3)


def test_pooling_in_the_wrong_place_is_refused():
    """Not a ResNet, one frame, after the shift, or for another clip length."""
    with pytest.raises(ConfigError, match=r"temporal pooling .*EfficientNet is none: choose"):
        add_temporal_pooling(timm.create_model("test_efficientnet"), 8)
    model = timm.create_model("test_resnet")
    with pytest.raises(ConfigError, match="over 1 frame"):
        add_temporal_pooling(model, 1)
    add_temporal_pooling(model, 8)
    with pytest.raises(ValueError, match="added for 8 frames, not 4"):
        add_temporal_shift(model, 4)
    shifted = timm.create_model("test_resnet")
    add_temporal_shift(shifted, 8)
    with pytest.raises(ValueError, match="before shift"):
        add_temporal_pooling(shifted, 8)


def test_a_second_shift_and_an_impossible_step_are_refused():
    """Both would train something else than asked."""
    model = timm.create_model("test_resnet")
    with pytest.raises(ConfigError, match="every 0-th block: at least 1"):
        add_temporal_shift(model, 4, every=0)
    with pytest.raises(ConfigError, match=r"layer1\.0\.conv1 of ResNet has 32 channels"):
        add_temporal_shift(model, 4, divisor=64)
    add_temporal_shift(model, 4)
    with pytest.raises(ValueError, match="shifted already"):
        add_temporal_shift(model, 4, placement="in-place")


def test_partial_bn_keeps_statistics_and_weights_of_all_norms_but_the_first():
    """A step of training after `train()`: only the stem's norm and the convolutions move."""

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = randomise_norms(timm.create_model("test_resnet", num_classes=3))
            self.frozen = freeze_batch_norm(self.net)

        def train(self, mode=True):
            super().train(mode)
            freeze_batch_norm(self.net)
            return self

    model = Network()
    norms = {n: m for n, m in model.net.named_modules() if isinstance(m, nn.BatchNorm2d)}
    first, *others = norms
    assert model.frozen == len(others) and first == "conv1.1"  # of the stem
    model.eval()
    model.train()
    before = {k: v.clone() for k, v in model.net.state_dict().items()}
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    model.net(torch.randn(4, 3, 32, 32)).square().sum().backward()
    optimizer.step()
    moved = {k for k, v in model.net.state_dict().items() if not torch.equal(v, before[k])}
    assert {f"{first}.{k}" for k in ("weight", "bias", "running_mean", "running_var")} <= moved
    assert "layer1.0.conv1.weight" in moved
    for name in others:
        assert not any(key.startswith(f"{name}.") for key in moved)
    assert freeze_batch_norm(model.net, keep_first=False) == len(norms)


def test_partial_bn_leaves_the_new_norms_of_non_local_blocks_alone():
    """They start at zero: frozen, the blocks would stay the identity for ever."""
    model = timm.create_model("test_resnet")
    add_non_local(model, 4)
    freeze_batch_norm(model, keep_first=False)
    for module in model.modules():
        if isinstance(module, NonLocal):
            assert module.norm.training and module.norm.weight.requires_grad
    with pytest.raises(ConfigError, match="no batch norms to freeze"):
        freeze_batch_norm(timm.create_model("test_vit"))


def test_a_network_without_residual_convolutions_is_refused():
    """A plain ViT has nothing to shift."""
    with pytest.raises(ConfigError, match="no residual blocks"):
        add_temporal_shift(timm.create_model("vit_tiny_patch16_224"), frames=4)


def test_without_shift_the_order_of_frames_does_not_matter_and_with_it_does():
    """The claim the demo rests on."""
    torch.manual_seed(0)
    video = torch.randn(2, 3, 4, 32, 32)
    for temporal, same in ((Frames(), True), (Shift(), False)):
        config = ModelConfig(backbone="resnet10t", temporal=temporal)
        model, _, _ = build_video_model(config, num_classes=3, frames=4, size=32)
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
    torch.testing.assert_close(FrameModel(backbone, 4)(video), each.mean(0), atol=1e-5, rtol=0)


def test_an_unknown_backbone_is_refused_with_a_suggestion():
    """Close names are offered."""
    with pytest.raises(ConfigError, match=r"no model 'resnet51'; did you mean .*resnet"):
        build_video_model(ModelConfig(backbone="resnet51"), num_classes=2, frames=4, size=32)


@pytest.mark.parametrize(
    ("name", "placement", "words"),
    [
        ("test_mambaout", "in-place", r"MambaOut cannot be .* not \[N, C, H, W\] but \[4, 8, 8,"),
        ("rdnet_tiny", "in-place", "RDNet cannot be .* cannot be wrapped"),
        ("coat_lite_tiny", "in-place", "CoaT cannot be .* unexpected keyword"),
        ("coat_lite_tiny", "residual", "blocks of CoaT share a convolution"),
        ("repvgg_a0", "residual", "of ByobNet has 3 channels"),
    ],
)
def test_networks_whose_blocks_cannot_be_shifted_are_refused_by_name(name, placement, words):
    """Channels last between blocks would have rows of the picture moved, and nobody the wiser."""
    config = ModelConfig(name, Shift(placement), dropout=0.0)
    with pytest.raises(ConfigError, match=words):
        build_video_model(config, num_classes=2, frames=4, size=64)


def test_channels_last_within_a_block_only_is_no_hindrance():
    """mambaout's convolutions get [N, C, H, W]: a residual shift moves channels, as everywhere."""
    config = ModelConfig("test_mambaout", Shift(), dropout=0.0)
    model, _, _ = build_video_model(config, num_classes=2, frames=4, size=64)
    shift = next(m for m in model.modules() if isinstance(m, TemporalShift))
    seen = {}
    shift.register_forward_hook(lambda _m, args, out: seen.update(x=args[0], out=out))
    model.eval()(torch.randn(1, 3, 4, 64, 64))
    channels = seen["x"].shape[1]
    sources = {c: 1 if c < channels // 8 else -1 for c in range(2 * (channels // 8))}
    assert torch.equal(seen["out"], shift_by_loop(seen["x"], 4, sources))
