"""The gradient of a temporal shift, against autograd's own of the assignments it is made of."""

import pytest
import timm
import torch
from torch import nn

from matinee.models.recompute import recompute_blocks
from matinee.models.shift import TemporalShift, add_temporal_shift, temporal_shift


def shift_by_assignment(x, frames, divisor, causal):
    """The shift left to autograd: slices assigned one after the other."""
    fold = x.shape[1] // divisor
    clips = x.unflatten(0, (-1, frames))
    out = clips.clone()
    first = 0 if causal else fold
    if not causal:
        out[:, :-1, :fold] = clips[:, 1:, :fold]
        out[:, -1, :fold] = 0
    out[:, 1:, first : first + fold] = clips[:, :-1, first : first + fold]
    out[:, 0, first : first + fold] = 0
    return out.flatten(0, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("frames", "channels", "divisor"), [(5, 16, 8), (1, 8, 4), (2, 8, 2), (4, 19, 8), (3, 3, 8)]
)
def test_shift_and_its_gradients_are_those_of_assignments(frames, channels, divisor, causal):
    """Bit for bit, in both memory layouts and in half precision; channels need not divide, and
    there may be too few to move.
    """
    for dtype in (torch.float32, torch.bfloat16):
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(2 * frames, channels, 3, 4).to(dtype).contiguous(memory_format=layout)
            grad = torch.randn_like(x)
            found, wanted = x.clone().requires_grad_(), x.clone().requires_grad_()
            mine = temporal_shift(found, frames, divisor, causal=causal)
            own = shift_by_assignment(wanted, frames, divisor, causal)
            assert torch.equal(mine, own) and mine.is_contiguous(memory_format=layout)
            mine.backward(grad)
            own.backward(grad)
            assert torch.equal(found.grad, wanted.grad) and found.grad.dtype == dtype


def test_shift_takes_a_gradient_that_is_one_number_everywhere_and_leaves_it_alone():
    """A sum's gradient is spread without memory of its own."""
    x = torch.randn(6, 8, 2, 2, requires_grad=True)
    shifted = temporal_shift(x, 3, 4)
    twice = torch.autograd.grad(shifted.sum() + shifted.square().sum(), x)[0]
    wanted = shift_by_assignment(x, 3, 4, False)
    assert torch.equal(twice, torch.autograd.grad(wanted.sum() + wanted.square().sum(), x)[0])


@pytest.mark.parametrize("causal", [False, True])
def test_shift_can_be_differentiated_twice(causal):
    x = torch.randn(6, 8, 2, 2, dtype=torch.float64, requires_grad=True)
    shift = TemporalShift(3, 4, causal=causal)
    assert torch.autograd.gradcheck(shift, (x,)) and torch.autograd.gradgradcheck(shift, (x,))


def test_the_backward_pass_of_a_shift_is_one_operation():
    """Assignments left to autograd would be a dozen that each pass over all features."""
    x = torch.randn(8, 16, 4, 4, requires_grad=True)
    node = temporal_shift(x, 4).grad_fn
    assert [type(after).__name__ for after, _ in node.next_functions if after] == ["AccumulateGrad"]


@pytest.mark.parametrize("placement", ["residual", "in-place"])
def test_a_shifted_network_has_the_gradients_of_assignments(placement, monkeypatch):
    """Whole network in autocast with channels innermost, and with its blocks recomputed."""
    images = torch.randn(8, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    grads = []
    for own, every in ((True, 0), (True, 1), (False, 0)):
        torch.manual_seed(0)
        model = timm.create_model("test_resnet", num_classes=3)
        for module in model.modules():  # timm starts residual branches at zero
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
        add_temporal_shift(model, 4, placement=placement)
        recompute_blocks(model, every)
        if not own:
            monkeypatch.setattr(
                "matinee.models.shift.temporal_shift",
                lambda x, frames, divisor, *, causal: shift_by_assignment(
                    x, frames, divisor, causal
                ),
            )
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.to(memory_format=torch.channels_last)(images).float().square().sum()
        loss.backward()
        grads.append([p.grad for p in model.parameters()])
    for mine, recomputed, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-2, atol=1e-2 * float(wanted.abs().max()))
        torch.testing.assert_close(recomputed, mine, rtol=1e-2, atol=1e-2 * float(mine.abs().max()))
