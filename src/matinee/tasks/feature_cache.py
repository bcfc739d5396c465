"""A contrastive loss over more clips than activations fit for: features are cached, not graphs.

# Note [Feature cache]
A contrastive loss needs the features of the whole batch at once, so adding up the gradients of
parts is another loss. Instead: embed all parts without gradient and keep the features; from the
loss over all of them, get the gradient with respect to the features; embed each part again, now
with gradient, and send its features' gradient backwards. Activations of one part exist at a time;
each part is computed twice forwards, once backwards.

- What is random (dropout, drop path, patch dropout) must come out the same twice: `reseed(i)` is
  called before each forward pass of part i.
- Batch normalisation in training mode takes its statistics from a part, not from the batch, as
  accumulation always does. Running statistics, like every buffer, are put back after the first
  pass, so that they move once a part and not twice.
- What the loss itself depends on, such as the temperature, gets its gradient once, with the loss.
- Gradients of several ranks are averaged with the last part's backward pass, when all are there.

Source: GradCache, arXiv 2101.06983, §3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from matinee.tasks.base import Step


def cached_backward(
    parts: Sequence[Any],
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    own: Tensor,
    model: nn.Module,
    step: Step,
) -> None:
    """Add to every `.grad` the gradient of the loss over all parts together.

    A single part is computed once, as usual.

    Args:
        parts: micro-batches; their inputs stay in memory all along. `step.compute` makes features
            of one: of the clips and of the texts, [b, E] each.
        loss: a scalar from the features of all parts, in order.
        own: what the loss itself depends on besides features: the temperature.
        model: whose buffers the first pass must leave alone.
    """

    def features(number: int) -> tuple[Tensor, Tensor]:
        step.reseed(number)
        with step.spans("forward"), step.autocast():
            pair: tuple[Tensor, Tensor] = step.compute(parts[number])
        return pair

    if len(parts) == 1:
        with step.part(0):
            value = loss(*features(0))
            with step.spans("backward"):
                torch.autograd.backward(value)
        return
    with torch.no_grad(), _buffers_put_back(model):
        cached = [features(number) for number in range(len(parts))]
    # Within an outer autocast, some versions of PyTorch would hand the second pass the casts of
    # weights that the first made without gradient (pytorch/pytorch issue 65766).
    torch.clear_autocast_cache()
    sides = [torch.cat(side).requires_grad_() for side in zip(*cached, strict=True)]
    value = loss(*sides)
    with step.spans("backward"):
        torch.autograd.backward(value)
    sizes = [len(video) for video, _ in cached]
    gradients = [
        torch.split(torch.zeros_like(side) if side.grad is None else side.grad, sizes)
        for side in sides
    ]
    for number in range(len(parts)):
        with step.part(number):
            pairs = zip(features(number), (side[number] for side in gradients), strict=True)
            trained = [(x, gradient) for x, gradient in pairs if x.requires_grad]
            if own.requires_grad:
                # What averages gradients over ranks waits for those of all parameters in a
                # backward pass: the temperature's is there already, and gets nothing added.
                trained.append((own * 0, torch.zeros_like(own)))
            with step.spans("backward"):
                torch.autograd.backward([x for x, _ in trained], [g for _, g in trained])
            # Or this part's activations would outlive the next part's forward pass.
            del pairs, trained


@contextmanager
def _buffers_put_back(model: nn.Module) -> Iterator[None]:
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    yield
    for buffer, value in before:
        buffer.copy_(value)
