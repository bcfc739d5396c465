"""Frame-by-frame prediction against the offline causal network."""

import pytest
import timm
import torch
from torch import nn

from matinee.errors import ConfigError
from matinee.models.live import LiveModel, causal_logits
from matinee.models.non_local import add_non_local
from matinee.models.shift import TemporalShift, add_temporal_pooling, add_temporal_shift

NETWORKS = ["test_resnet", "resnext50_32x4d", "mobilenetv2_035", "mobilenetv3_small_050",
            "efficientnet_b0"]  # fmt: skip


def causal_network(name, frames=6, placement="residual"):
    """With random norms, since timm starts the last one of each residual branch at zero."""
    tiny = {"layers": [2, 1, 1, 1]} if name.startswith("resnext") else {}
    model = timm.create_model(name, num_classes=5, **tiny).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
    add_temporal_shift(model, frames, causal=True, placement=placement)
    return model


class FrameByFrame(nn.Module):
    """A module without shift, run on one frame of all clips at a time: [B·T, …] → [B·T, …]."""

    def __init__(self, module, frames):
        super().__init__()
        self.module, self.frames = module, frames

    def forward(self, x):
        clips = x.view(-1, self.frames, *x.shape[1:])
        layout = torch.channels_last if x.dim() == 4 else torch.contiguous_format
        out = [
            self.module(clips[:, t].contiguous(memory_format=layout)) for t in range(self.frames)
        ]
        return torch.stack(out, dim=1).flatten(0, 1)


def with_kernels_of_one_frame(model, frames):
    """The offline network (one shift over the whole clip), all else computed frame by frame.

    Convolutions then have the batch size that they have live, so libraries choose the same kernels.
    """
    for name, child in list(model.named_children()):
        if isinstance(child, TemporalShift):
            continue
        if any(isinstance(m, TemporalShift) for m in child.modules()):
            with_kernels_of_one_frame(child, frames)
        else:
            setattr(model, name, FrameByFrame(child, frames))
    return model


def run_live(live, video_BCTHW):
    return torch.stack([live.step(frame) for frame in video_BCTHW.unbind(2)], dim=1)


@pytest.mark.parametrize("placement", ["residual", "in-place"])
@pytest.mark.parametrize("name", NETWORKS)
def test_live_equals_the_offline_causal_network_bit_for_bit(name, placement):
    """float32, two streams of six frames, same kernels on both sides: no rounding to forgive."""
    model = causal_network(name, placement=placement)
    video = torch.randn(2, 3, 6, 64, 64)
    got = run_live(LiveModel(model), video)
    offline = with_kernels_of_one_frame(model, frames=6)
    images = video.transpose(1, 2).flatten(0, 1).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        assert torch.equal(got, offline(images).view(2, 6, 5))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-13), (torch.float32, 1e-4)])
def test_live_equals_the_offline_pass_over_whole_clips(name, dtype, bound):
    """One batch of all frames; relative to the largest logit, only kernels' rounding differs."""
    model = causal_network(name).to(dtype)
    video = torch.randn(2, 3, 6, 32, 32, dtype=dtype)
    with torch.no_grad():
        wanted = model(video.transpose(1, 2).flatten(0, 1)).view(2, 6, 5)
    for got in (run_live(LiveModel(model), video), causal_logits(model, video)):
        assert (got - wanted).abs().max() <= bound * wanted.abs().max()


def test_clips_may_be_longer_than_those_trained_on():
    """The cache has no end, and the offline pass takes any number of frames."""
    model = causal_network("test_resnet", frames=4).double()
    video = torch.randn(1, 3, 11, 32, 32, dtype=torch.float64)
    got = run_live(LiveModel(model), video)
    torch.testing.assert_close(got, causal_logits(model, video), atol=1e-12, rtol=0)
    assert all(m.frames == 4 for m in model.modules() if isinstance(m, TemporalShift))


def test_a_frame_depends_on_earlier_frames_and_on_no_later_one():
    """Changing frame 2 of 5 leaves logits 0 and 1 untouched and changes 2, 3 and 4."""
    model = causal_network("test_resnet", frames=5).double()
    video = torch.randn(1, 3, 5, 32, 32, dtype=torch.float64)
    changed = video.clone()
    changed[:, :, 2] += 1
    difference = (causal_logits(model, video) - causal_logits(model, changed)).abs()
    assert (difference[0].amax(dim=1) > 1e-9).tolist() == [False, False, True, True, True]


def test_reset_forgets_and_without_it_the_past_shows():
    """The same frame: first, after another, and first again."""
    live = LiveModel(causal_network("test_resnet"))
    frame, other = torch.randn(1, 3, 32, 32), torch.randn(1, 3, 32, 32)
    first = live.step(frame)
    live.step(other)
    assert not torch.allclose(live.step(frame), first, atol=1e-3)
    live.reset()
    assert torch.equal(live.step(frame), first)
    assert torch.equal(live.average(), first)


def test_streams_do_not_mix():
    """Two streams at once against each alone."""
    model = causal_network("test_resnet").double()
    video = torch.randn(2, 3, 4, 32, 32, dtype=torch.float64)
    both = run_live(LiveModel(model), video)
    for stream in range(2):
        alone = run_live(LiveModel(model), video[stream : stream + 1])
        torch.testing.assert_close(alone, both[stream : stream + 1], atol=1e-12, rtol=0)


def test_average_runs_over_the_window_and_by_default_gives_the_clips_prediction():
    """Against means of the frames' logits; after T frames against the mean over the clip."""
    model = causal_network("test_resnet", frames=6)
    video = torch.randn(2, 3, 6, 32, 32)
    live, short = LiveModel(model), LiveModel(model, window=2)
    seen = []
    for frame in video.unbind(2):
        seen.append(live.step(frame))
        short.step(frame)
        torch.testing.assert_close(short.average(), sum(seen[-2:]) / len(seen[-2:]))
    assert live.window == 6
    wanted = causal_logits(model, video).mean(dim=1)
    torch.testing.assert_close(live.average(), wanted, atol=1e-5, rtol=1e-5)


def test_the_given_network_keeps_training_and_holds_no_cache():
    """Live prediction works on a copy in evaluation mode that shares the tensors."""
    model = causal_network("test_resnet").train()
    modules, keys = list(model.modules()), set(model.state_dict())
    live = LiveModel(model)
    before = live.step(torch.ones(1, 3, 32, 32))
    assert list(model.modules()) == modules and all(m.training for m in model.modules())
    assert set(model.state_dict()) == keys and not before.requires_grad
    running = model.bn1.running_mean.clone()
    live.step(torch.ones(1, 3, 32, 32))
    assert torch.equal(model.bn1.running_mean, running)
    with torch.no_grad():
        model.fc.bias += 1
    live.reset()
    torch.testing.assert_close(live.step(torch.ones(1, 3, 32, 32)), before + 1)
    model(torch.randn(12, 3, 32, 32)).sum().backward()
    assert model.fc.bias.grad is not None


def test_networks_that_look_ahead_are_refused():
    """Two-way shift, pooling, non-local blocks, no shift at all."""
    plain = timm.create_model("test_resnet")
    with pytest.raises(ConfigError, match="no temporal shift"):
        LiveModel(plain)
    both_ways = timm.create_model("test_resnet")
    add_temporal_shift(both_ways, 4)
    pooled = timm.create_model("test_resnet")
    add_temporal_pooling(pooled, 4)
    add_temporal_shift(pooled, 4, causal=True)
    attending = causal_network("test_resnet", frames=4)
    add_non_local(attending, 4)
    for model, kind in ((both_ways, "Shift"), (pooled, "Pool"), (attending, "NonLocal")):
        with pytest.raises(ConfigError, match=rf"layer\S+ \(\w*{kind}\) looks at later frames"):
            LiveModel(model)
        with pytest.raises(ConfigError, match="looks at later frames"):
            causal_logits(model, torch.randn(1, 3, 4, 32, 32))


def test_misuse_is_said():
    """Another frame size in the middle, an average of nothing, a window of nothing."""
    model = causal_network("test_resnet")
    with pytest.raises(ConfigError, match="average over 0 frames"):
        LiveModel(model, window=0)
    live = LiveModel(model)
    with pytest.raises(ValueError, match="no frame seen yet"):
        live.average()
    live.step(torch.randn(1, 3, 32, 32))
    with pytest.raises(ValueError, match=r"\[2, 3, 32, 32\] after .*\[1, 3, 32, 32\]: call reset"):
        live.step(torch.randn(2, 3, 32, 32))
