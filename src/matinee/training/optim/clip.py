"""Limits of gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm


def clip_gradients(
    parameters: Iterable[Tensor], clip_norm: float | None, clip_value: float | None
) -> Tensor:
    """Cut elements of gradients to ±`clip_value`, then shorten the whole to `clip_norm`, in place.

    Parameters may be whole or divided among ranks (DTensor), or some of each; with divided ones,
    all ranks must call this. Nothing waits for the device.

    Returns:
        The norm before either, a plain 0-dim tensor: it shows infinities that a limit of values
        would hide.
    """
    with_gradient = [p for p in parameters if p.grad is not None]
    divided = [p for p in with_gradient if isinstance(p.grad, DTensor)]
    whole = [p for p in with_gradient if not isinstance(p.grad, DTensor)]
    kinds = [some for some in (whole, divided) if some]  # no kernel takes both
    norm = _norm(kinds)
    if clip_value is not None:
        for some in kinds:
            clip_grad_value_(some, clip_value)
    if clip_norm is not None:
        length = norm if clip_value is None else _norm(kinds)
        for some in kinds:
            clip_grads_with_norm_(some, clip_norm, length)
    return norm


def _norm(kinds: Sequence[Sequence[Tensor]]) -> Tensor:
    """The 2-norm of all gradients together; zero without any."""
    norms = []
    for some in kinds:
        norm = get_total_norm([p.grad for p in some if p.grad is not None])
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    return norms[0] if len(norms) == 1 else get_total_norm(norms)
