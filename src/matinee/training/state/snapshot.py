"""A copy of a state in the memory of the host, which is written while training goes on.

# Note [Snapshot]
A state is made of dicts, lists and tuples of tensors, strings, numbers, booleans and None: what
torch reads back with `weights_only=True`. Anything else is refused before it is written, since a
file that holds it could not be read again.

The memory of one copy is kept for the next, so that only the first pays for its pages. Copies from
a GPU go to pinned memory, all at once, and are waited for once. A tensor that occurs several times
(tied weights) is copied once and stays one tensor; a view is copied without what its storage holds
beside it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

_PLAIN = (type(None), bool, int, float, str)


class Snapshot:
    """Copies states, one at a time: `take` overwrites what it returned before."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    @torch.no_grad()
    def take(self, state: dict[str, Any]) -> dict[str, Any]:
        """`state` with every tensor copied to the CPU. See Note [Snapshot].

        Raises:
            TypeError: a value that could not be read again, and where it is.
        """
        before, self._buffers = self._buffers, {}
        copies: dict[tuple[object, ...], Tensor] = {}
        devices: set[torch.device] = set()

        def copy(value: Any, where: str) -> Any:
            if isinstance(value, Tensor):
                return copy_tensor(value, where)
            if isinstance(value, dict):
                kind = OrderedDict if isinstance(value, OrderedDict) else dict
                copied = kind((_plain(k, where), copy(v, f"{where}.{k}")) for k, v in value.items())
                if isinstance(copied, OrderedDict):  # a module's has the versions of its layers
                    copied.__dict__.update(copy(vars(value), where))
                return copied
            if isinstance(value, list | tuple):
                items = [copy(item, f"{where}.{i}") for i, item in enumerate(value)]
                return items if isinstance(value, list) else tuple(items)
            return _plain(value, where)

        def copy_tensor(tensor: Tensor, where: str) -> Tensor:
            same = (
                tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride(),
            )  # fmt: skip
            if same not in copies:
                buffer = before.get(where)
                if buffer is None or not _fits(buffer, tensor):
                    buffer = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
                buffer.copy_(tensor, non_blocking=tensor.is_cuda)
                if tensor.is_cuda:
                    devices.add(tensor.device)
                copies[same] = self._buffers[where] = buffer
            return copies[same]

        copied: dict[str, Any] = copy(state, "state")
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        return copied


def _fits(buffer: Tensor, tensor: Tensor) -> bool:
    wanted = torch.empty_like(tensor, device="meta")
    return (
        (buffer.dtype, buffer.shape, buffer.stride())
        == (wanted.dtype, wanted.shape, wanted.stride())
        and buffer.is_pinned() == tensor.is_cuda
    )  # fmt: skip


def _plain(value: Any, where: str) -> Any:
    if type(value) not in _PLAIN:  # not isinstance: numpy's float64 is a float
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(f"{where} of a checkpoint is a {kind}, which could not be read again")
    return value
