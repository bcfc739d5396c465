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

Source: GradCache, arXiv 2101.06983, §3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from matinee.spans import Spans

Part = TypeVar("Part")


def cached_backward(
    parts: Sequence[Part],
    embed: Callable[[Part], tuple[Tensor, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    model: nn.Module,
    reseed: Callable[[int], None],
    autocast: Callable[[], AbstractContextManager[object]],
    spans: Spans,
    scale: float = 1.0,
) -> Tensor:
    """Add to every `.grad` the gradient of `scale` · the loss over all parts together.

    A single part is computed once, as usual. Hooks that reduce gradients between ranks must be off
    (`DistributedDataParallel.no_sync`): several backward passes add to each parameter.

    Args:
        parts: micro-batches; their inputs stay in memory all along.
        embed: features of the clips and of the texts of a part, [b, E] each.
        loss: a scalar from the features of all parts, in order.
        model: whose buffers the first pass must leave alone.
        reseed: sets the random state that forward passes of part i begin with.
        autocast: around each forward pass; the loss is outside it.

    Returns:
        The loss, unscaled, without gradient.
    """

    def features(number: int) -> tuple[Tensor, Tensor]:
        reseed(number)
        with spans("forward"), autocast():
            return embed(parts[number])

    if len(parts) == 1:
        value = loss(*features(0))
        with spans("backward"):
            torch.autograd.backward(scale * value)
        return value.detach()
    with torch.no_grad(), _buffers_put_back(model):
        cached = [features(number) for number in range(len(parts))]
    # Within an outer autocast, some versions of PyTorch would hand the second pass the casts of
    # weights that the first made without gradient (pytorch/pytorch issue 65766).
    torch.clear_autocast_cache()
    sides = [torch.cat(side).requires_grad_() for side in zip(*cached, strict=True)]
    value = loss(*sides)
    with spans("backward"):
        torch.autograd.backward(scale * value)
    sizes = [len(video) for video, _ in cached]
    gradients = [
        torch.split(torch.zeros_like(side) if side.grad is None else side.grad, sizes)
        for side in sides
    ]
    for number in range(len(parts)):
        pairs = zip(features(number), (side[number] for side in gradients), strict=True)
        trained = [(x, gradient) for x, gradient in pairs if x.requires_grad]
        with spans("backward"):
            torch.autograd.backward([x for x, _ in trained], [gradient for _, gradient in trained])
        del pairs, trained  # or this part's activations would outlive the next part's forward pass
    return value.detach()


@contextmanager
def _buffers_put_back(model: nn.Module) -> Iterator[None]:
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    yield
    for buffer, value in before:
        buffer.copy_(value)
