"""Cached accumulation against one loss over the concatenated features of all parts."""

import weakref
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from steps import plain_step
from torch import nn

from matinee.tasks.feature_cache import cached_backward
from matinee.tasks.losses import info_nce


class Towers(nn.Module):
    """Two towers with dropout, one with batch normalisation, and a learned temperature."""

    def __init__(self, *, freeze_text: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.video = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.4), nn.Linear(16, 6)
        )
        self.text = nn.Sequential(nn.Linear(5, 16), nn.GELU(), nn.Dropout(0.4), nn.Linear(16, 6))
        self.text.requires_grad_(not freeze_text)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, part):
        video, text = part
        return F.normalize(self.video(video), dim=1), F.normalize(self.text(text), dim=1)

    def loss(self, video, text):
        return info_nce(video, text, self.logit_scale.exp()).mean()


def make_parts(sizes, dtype):
    generator = torch.Generator().manual_seed(1)
    return [
        tuple(torch.randn(size, width, generator=generator).to(dtype) for width in (8, 5))
        for size in sizes
    ]


def reseed(number):
    torch.manual_seed(100 + number)


def reference(model, parts, scale=1.0):
    """All features in one graph."""
    features = []
    for number, part in enumerate(parts):
        reseed(number)
        features.append(model(part))
    value = model.loss(*(torch.cat(side) for side in zip(*features, strict=True)))
    (scale * value).backward()
    return value


def cached(model, parts, *, embed=None, autocast=nullcontext, scale=1.0, reseed=reseed):
    """The loss as it came out, of which `scale` times the gradient is taken."""
    values = []

    def loss(*sides):
        values.append(model.loss(*sides))
        return scale * values[-1]

    step = plain_step(embed or model, reseed=reseed, autocast=autocast)
    cached_backward(parts, loss, own=model.logit_scale, model=model, step=step)
    return values[0].detach()


def relative(ours, wanted):
    return float((ours - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("sizes", [(4, 4, 4), (5, 3), (7,)])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_gradients_equal_those_of_one_big_batch(sizes, dtype, limit):
    """Every parameter, the temperature among them, with dropout and a scaled loss."""
    parts = make_parts(sizes, dtype)
    one, many = Towers().to(dtype), Towers().to(dtype)
    wanted = reference(one, parts, scale=0.5)
    value = cached(many, parts, scale=0.5)
    torch.testing.assert_close(value, wanted.detach(), rtol=limit, atol=0)
    for (name, ours), theirs in zip(many.named_parameters(), one.parameters(), strict=True):
        if name == "video.0.bias":  # batch normalisation takes it away again
            assert float(ours.grad.norm()) < limit and float(theirs.grad.norm()) < limit
        else:
            assert relative(ours.grad, theirs.grad) < limit, name


def test_the_sum_of_the_parts_losses_has_another_gradient():
    """Or the test above could not tell the cache from plain accumulation."""
    parts = make_parts((4, 4, 4), torch.float64)
    one, plain = Towers().double(), Towers().double()
    reference(one, parts)
    for number, part in enumerate(parts):
        reseed(number)
        (plain.loss(*plain(part)) / len(parts)).backward()
    assert relative(plain.video[0].weight.grad, one.video[0].weight.grad) > 0.1


def test_gradients_are_added_to_those_that_are_there():
    parts = make_parts((4, 4), torch.float64)
    once, twice = Towers().double().eval(), Towers().double().eval()
    cached(once, parts)
    cached(twice, parts)
    cached(twice, parts)
    for ours, theirs in zip(twice.parameters(), once.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, 2 * theirs.grad, rtol=1e-10, atol=1e-14)


def test_running_statistics_move_once_a_part():
    parts = make_parts((4, 4, 4), torch.float64)
    one, many = Towers().double(), Towers().double()
    reference(one, parts)
    cached(many, parts)
    assert int(many.video[1].num_batches_tracked) == 3
    for ours, theirs in zip(many.buffers(), one.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


def test_randomness_of_a_part_is_replayed():
    """Seen by a part's features; another seed in the second pass would give other ones."""
    model, parts, seen = Towers(), make_parts((4, 4), torch.float32), []

    def embed(part):
        features = model(part)
        seen.append(features[0].detach().clone())
        return features

    cached(model, parts, embed=embed)
    assert len(seen) == 4
    assert torch.equal(seen[0], seen[2]) and torch.equal(seen[1], seen[3])


def test_one_parts_activations_are_alive_at_a_time():
    """Nothing is kept of the first pass, and of the second only the part at hand."""
    model, parts, graphs, alive = Towers(), make_parts((4, 4, 4), torch.float32), [], []

    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    def embed(part):
        alive.append(sum(graph() is not None for graph in graphs))
        video, text = model(part)
        video = Marked.apply(video)
        if video.grad_fn is not None:
            graphs.append(weakref.ref(video.grad_fn))
        return video, text

    cached(model, parts, embed=embed)
    assert len(graphs) == 3 and alive == [0] * 6


def test_a_frozen_tower_gets_no_gradient():
    parts = make_parts((4, 4), torch.float64)
    one, many = Towers(freeze_text=True).double(), Towers(freeze_text=True).double()
    reference(one, parts)
    cached(many, parts)
    assert all(p.grad is None for p in many.text.parameters())
    for ours, theirs in zip(many.video.parameters(), one.video.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-14)


def test_autocast_around_the_whole_changes_no_gradient():
    """Casts of weights are cached within autocast: those of the first pass have no gradient."""
    parts = make_parts((4, 4), torch.float32)
    one, many = Towers(), Towers()
    with torch.autocast("cpu", torch.bfloat16):
        reference(one, parts)
        cached(many, parts, autocast=lambda: torch.autocast("cpu", torch.bfloat16))
    for (name, ours), theirs in zip(many.named_parameters(), one.named_parameters(), strict=True):
        if name != "video.0.bias":
            assert relative(ours.grad, theirs[1].grad) < 0.02, name
