"""A 1×1 convolution that reads shifted features where they lie, against shifting and convolving."""

import copy

import numpy as np
import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

from matinee.models.shift import ShiftedConv, TemporalShift, add_temporal_shift, temporal_shift
from matinee.models.shifted_conv import can_read_shifted, shifted_pointwise

CASES = [
    (clips, frames, channels, size, causal)
    for clips, frames, channels, size in ((1, 8, 16, 5), (3, 4, 9, 2), (2, 1, 8, 3), (2, 2, 24, 1))
    for causal in (False, True)
]


def pictures(clips, frames, channels, size, dtype=torch.float64):
    torch.manual_seed(clips)
    x = torch.randn(clips * frames, channels, size, size + 1, dtype=dtype)
    return x.to(memory_format=torch.channels_last)


def gradients(function, x, weight):
    """Result and gradients of a random sum of it."""
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    out = function(x, weight)
    torch.manual_seed(0)
    out.backward(torch.randn(out.shape).to(out.dtype))
    return out.detach(), x.grad, weight.grad


@pytest.mark.parametrize("clips, frames, channels, size, causal", CASES)
def test_it_is_the_convolution_of_shifted_features(clips, frames, channels, size, causal):
    x = pictures(clips, frames, channels, size)
    weight = torch.randn(6, channels, 1, 1, dtype=x.dtype)
    ours = gradients(
        lambda x, w: shifted_pointwise(x, w, frames, channels // 8, causal=causal), x, weight
    )
    theirs = gradients(
        lambda x, w: F.conv2d(temporal_shift(x, frames, 8, causal=causal), w), x, weight
    )
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-10, atol=1e-12)
    assert ours[0].is_contiguous(memory_format=torch.channels_last)


def test_its_gradient_is_that_of_finite_differences():
    x = pictures(2, 3, 8, 2).requires_grad_()
    weight = torch.randn(4, 8, 1, 1, dtype=x.dtype, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: shifted_pointwise(x, w, 3, 2), (x, weight))


@pytest.mark.parametrize("frozen", ["features", "weight"])
def test_what_is_frozen_gets_no_gradient(frozen):
    x, weight = pictures(1, 2, 8, 2), torch.randn(4, 8, 1, 1, dtype=torch.float64)
    trained = weight if frozen == "features" else x
    trained.requires_grad_()
    shifted_pointwise(x, weight, 2, 1).sum().backward()
    assert (x.grad is None, weight.grad is None) == (frozen == "features", frozen == "weight")


def test_the_gradient_lies_in_memory_as_the_weight_does():
    """Else DDP copies it into its bucket, with a warning."""
    x = pictures(1, 2, 8, 2)
    for strides in ((8, 1, 1, 1), (8, 1, 8, 8)):  # contiguous, channels last
        weight = torch.randn(4, 8, 1, 1, dtype=x.dtype).as_strided((4, 8, 1, 1), strides)
        weight.requires_grad_()
        shifted_pointwise(x, weight, 2, 1).sum().backward()
        assert weight.grad.stride() == weight.stride()


def test_under_autocast_it_computes_in_its_number_format():
    x = pictures(1, 4, 64, 4, torch.float32)
    weight = torch.randn(32, 64, 1, 1)
    with torch.autocast("cpu", torch.bfloat16):
        half, of_x, of_weight = gradients(lambda x, w: shifted_pointwise(x, w, 4, 8), x, weight)
    exact, *grads = gradients(lambda x, w: F.conv2d(temporal_shift(x, 4), w), x, weight)
    assert half.dtype == torch.bfloat16 and of_weight.dtype == torch.float32
    for mine, reference in ((half, exact), (of_x, grads[0]), (of_weight, grads[1])):
        off = (mine.float() - reference).abs().max() / reference.abs().max()
        assert off < 0.03


def test_where_it_does_not_go_features_are_copied():
    x = pictures(1, 4, 16, 4, torch.float32)
    point = nn.Conv2d(16, 8, 1, bias=False)
    assert can_read_shifted(point, x)
    assert not can_read_shifted(point, x.contiguous())
    assert not can_read_shifted(point, x.to("meta"))
    hooked = nn.Conv2d(16, 8, 1, bias=False)
    hooked.register_forward_pre_hook(lambda module, args: None)
    assert not can_read_shifted(hooked, x)
    for other in (
        nn.Conv2d(16, 8, 3, padding=1, bias=False), nn.Conv2d(16, 8, 1),
        nn.Conv2d(16, 8, 1, stride=2, bias=False), nn.Conv2d(16, 8, 1, groups=2, bias=False),
        nn.Conv2d(16, 8, 1, padding=1, bias=False),
    ):  # fmt: skip
        assert not can_read_shifted(other, x)
        module = ShiftedConv(other, TemporalShift(4))
        torch.testing.assert_close(module(x), other(temporal_shift(x, 4)))


def test_a_bottleneck_keeps_no_shifted_copy_for_its_backward_pass():
    network = timm.create_model("resnet50", num_classes=3, zero_init_last=False)
    network.to(torch.float64, memory_format=torch.channels_last)
    add_temporal_shift(network, 4)
    copied = copy.deepcopy(network)
    for module in copied.modules():
        if isinstance(module, ShiftedConv):
            module.forward = module.copied
    video = pictures(2, 4, 3, 32)

    def run(network):
        kept = {}
        weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}

        def keep(tensor):
            if tensor.untyped_storage().data_ptr() not in weights:
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        network.train()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = network(video)
        out.square().sum().backward()
        shifted = [m for m in network.modules() if isinstance(m, ShiftedConv)]
        return sum(kept.values()), out.detach(), [m.conv.weight.grad for m in shifted]

    ours, theirs = run(network), run(copied)
    assert ours[0] < 0.9 * theirs[0]
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-9, atol=1e-9)
    off = [
        float((mine - reference).norm() / reference.norm())
        for mine, reference in zip(ours[2], theirs[2], strict=True)
    ]
    assert np.max(off) < 1e-9


def test_compiled_and_exported_networks_shift_a_copy():
    module = ShiftedConv(nn.Conv2d(16, 8, 1, bias=False), TemporalShift(4)).eval()
    x = pictures(2, 4, 16, 4, torch.float32)
    program = torch.export.export(module, (x,), strict=True)
    operations = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert any("conv2d" in name for name in operations)
    torch.testing.assert_close(program.module()(x), module(x), rtol=1e-4, atol=1e-5)
