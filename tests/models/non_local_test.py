"""Non-local blocks against the paper's formula, and their insertion."""

import numpy as np
import pytest
import timm
import torch
from torch import nn

from matinee.errors import ConfigError
from matinee.models.non_local import BlockWithNonLocal, NonLocal, add_non_local
from matinee.models.shift import add_temporal_pooling, add_temporal_shift


def formula(block, clip_CTHW):
    """z = W(Σ_j softmax_j(θ(x_i)·φ(x_j)) g(x_j)) + x for one clip, place by place in float64."""
    weights = {k: v.double().numpy() for k, v in block.state_dict().items()}
    x = clip_CTHW.double().numpy()
    channels, frames, height, width = x.shape

    def embed(name, place):
        return weights[f"{name}.weight"][:, :, 0, 0] @ place + weights[f"{name}.bias"]

    keys, values = [], []
    for t in range(frames):
        for top in range(0, height - 1, 2):
            for left in range(0, width - 1, 2):
                square = [x[:, t, top + i, left + j] for i in (0, 1) for j in (0, 1)]
                keys.append(np.max([embed("phi", p) for p in square], axis=0))
                values.append(np.max([embed("g", p) for p in square], axis=0))
    out = np.empty_like(x)
    scale = weights["norm.weight"] / np.sqrt(weights["norm.running_var"] + block.norm.eps)
    for t, i, j in np.ndindex(frames, height, width):
        place = x[:, t, i, j]
        e = np.exp(np.array([embed("theta", place) @ key for key in keys]))
        mixed = embed("out", (e / e.sum()) @ np.array(values))
        new = (mixed - weights["norm.running_mean"]) * scale + weights["norm.bias"]
        out[:, t, i, j] = place + new
    assert out.shape[0] == channels
    return torch.from_numpy(out)


def random_block(channels, frames):
    block = NonLocal(channels, frames).eval()
    for tensor in block.norm.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5)
    return block


@pytest.mark.parametrize("size", [(4, 6), (5, 3)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_block_is_the_papers_embedded_gaussian(size, layout):
    """Two clips of three frames; odd heights and widths lose their last row in the sub-sampling."""
    block = random_block(8, frames=3)
    x = torch.randn(2 * 3, 8, *size)
    with torch.no_grad():
        out = block(x.contiguous(memory_format=layout))
    for b in range(2):
        wanted = formula(block, x[3 * b : 3 * b + 3].transpose(0, 1))
        torch.testing.assert_close(
            out[3 * b : 3 * b + 3].transpose(0, 1).double(), wanted, atol=1e-5, rtol=1e-5
        )
    assert block.double()(x.double()).dtype == torch.float64


def test_clips_of_a_batch_do_not_attend_to_each_other_and_frames_of_a_clip_do():
    """Changing clip 1's last frame changes all of clip 1 and none of clip 0."""
    block = random_block(8, frames=3).double()
    x = torch.randn(6, 8, 4, 4, dtype=torch.float64)
    changed = x.clone()
    changed[5] += 1
    differs = (block(x) - block(changed)).abs().amax(dim=(1, 2, 3)) > 1e-9
    assert differs.tolist() == [False] * 3 + [True] * 3


def test_insertion_changes_no_output_and_names_the_published_places():
    """ResNet-50's five blocks: 0 and 2 of stage 2; 0, 2 and 4 of stage 3. Bit for bit."""
    model = timm.create_model("resnet50", num_classes=3).eval()
    add_temporal_shift(model, 4)
    images = torch.randn(4, 3, 64, 64)
    with torch.no_grad():
        before = model(images)
        names = add_non_local(model, 4)
        assert names == ["layer2.0", "layer2.2", "layer3.0", "layer3.2", "layer3.4"]
        assert torch.equal(model(images), before)
    nl = [m for m in model.modules() if isinstance(m, NonLocal)]
    assert [m.theta.in_channels for m in nl] == [512, 512, 1024, 1024, 1024]
    assert {"layer2.0.block.conv1.conv.weight", "layer2.0.nl.theta.weight"} <= set(
        model.state_dict()
    )
    assert isinstance(model.layer2[0], BlockWithNonLocal)


def test_the_scale_learns_first_and_then_the_embeddings():
    """With a zero scale only the norm has a gradient; after one step all of the block has."""
    model = timm.create_model("test_resnet", num_classes=3)
    names = add_non_local(model, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.randn(4, 3, 64, 64)
    nl = model.get_submodule(names[0]).nl
    for step in range(2):
        optimizer.zero_grad()
        model(images).square().sum().backward()
        assert nl.norm.weight.grad.abs().max() > 0
        moving = [c.weight.grad.abs().max().item() > 0 for c in (nl.theta, nl.phi, nl.g, nl.out)]
        assert moving == [step == 1] * 4
        optimizer.step()


def test_shift_may_follow_and_pooling_halves_the_frames():
    """Blocks inside the wrapper are found, in either order, and stages are counted alike."""
    model = timm.create_model("resnet18", num_classes=3)
    add_temporal_pooling(model, 4)
    assert add_non_local(model, 4) == ["layer2.0", "layer3.0"]
    assert [m.frames for m in model.modules() if isinstance(m, NonLocal)] == [2, 2]
    wrapped = add_temporal_shift(model, 4, every=2)
    assert wrapped == [
        "layer1.0.conv1", "layer2.0.block.conv1", "layer3.0.block.conv1", "layer4.0.conv1"
    ]  # fmt: skip
    assert model(torch.randn(8, 3, 32, 32)).shape == (4, 3)


def test_non_local_blocks_where_they_cannot_be_are_refused():
    """Not a ResNet, twice, or features too small to halve."""
    with pytest.raises(ConfigError, match="EfficientNet is none: choose one such as resnet50"):
        add_non_local(timm.create_model("test_efficientnet"), 4)
    model = timm.create_model("test_resnet")
    add_non_local(model, 4)
    with pytest.raises(ValueError, match="already"):
        add_non_local(model, 4)
    with pytest.raises(ConfigError, match=r"features of 1×1 at a non-local block.*larger frames"):
        model(torch.randn(4, 3, 16, 16))


def test_norm_over_frames_is_the_3d_networks():
    """BatchNorm2d on [B·T, C, H, W] in training mode against BatchNorm3d on [B, C, T, H, W]."""
    block = random_block(8, frames=3).train()
    x = torch.randn(6, 8, 4, 4)
    volume = nn.BatchNorm3d(8)
    volume.load_state_dict(block.norm.state_dict())
    wanted = volume(x.view(2, 3, 8, 4, 4).transpose(1, 2))
    torch.testing.assert_close(block.norm(x).view(2, 3, 8, 4, 4).transpose(1, 2), wanted)
    torch.testing.assert_close(block.norm.running_var, volume.running_var)
