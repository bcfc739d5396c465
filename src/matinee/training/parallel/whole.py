"""Between whole tensors and tensors divided among ranks. See Note [Divided weights] in fsdp.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from matinee.training.parallel.ranks import Ranks


def reduce_whole(parameters: Sequence[Tensor], ranks: Ranks) -> None:
    """Average the gradients of weights that FSDP left whole; nothing to do without FSDP."""
    if ranks.world > 1 and any(isinstance(p, DTensor) for p in parameters):
        for p in parameters:
            if not isinstance(p, DTensor) and p.grad is not None:
                ranks.sum(p.grad).div_(ranks.world)


def whole(value: Any, ranks: Ranks) -> Any:
    """A tree of tensors with divided ones gathered on rank 0's host, one after the other, so that
    no device ever holds more than one of them whole; a collective if there are any.

    On other ranks the divided ones become None.
    """
    if isinstance(value, DTensor):
        full = value.full_tensor()
        return full.cpu() if ranks.is_main else None
    if isinstance(value, dict):
        return {name: whole(inner, ranks) for name, inner in value.items()}
    if isinstance(value, list):
        return [whole(inner, ranks) for inner in value]
    return value


def like(value: Tensor, owner: Tensor) -> Tensor:
    """A whole tensor divided as `owner` is, if it is and has the same shape."""
    if isinstance(owner, DTensor) and value.shape == owner.shape:
        local = value.to(owner.device)
        return distribute_tensor(local, owner.device_mesh, owner.placements)
    return value
