"""Bytes of tensors that are alive at each moment of a computation, by what they are for.

# Note [Live bytes]
A tensor is a view of a storage, and memory belongs to storages: each is counted once, from the
operation that made it until it is gone, whoever refers to it. The same counting works on real
tensors and on fake ones, which have shapes and no memory. What it cannot see is memory that a
kernel takes and returns within itself.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Kind = Literal[
    "parameters", "buffers", "gradients", "optimizer", "activations", "inputs", "communication",
    "transient",
]  # fmt: skip
Phase = Literal["forward", "backward", "optimizer"]

_DEVICE = torch.ops.prim.device.default
_ITEM = torch.ops.aten._local_scalar_dense.default


@dataclass
class Peak:
    """The moment of a phase when most bytes were alive."""

    total: int = 0
    kinds: Counter[Kind] = field(default_factory=Counter)


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages while it is entered. See Note [Live bytes].

    `now` are bytes by kind, `peaks` the largest sum of each phase, `saved` the most that was ever
    saved for a backward pass. Whoever computes sets `phase`.

    Args:
        workspace: bytes that an operation takes beside its results while it runs, given the
            operation and its arguments.
    """

    def __init__(self, workspace: Callable[[Any, Any], int] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now: Counter[Kind] = Counter()
        self.peaks: dict[Phase, Peak] = {p: Peak() for p in ("forward", "backward", "optimizer")}
        self.phase: Phase = "forward"
        self.saved = 0
        self._total = 0
        self._workspace = workspace
        self._known: dict[int, tuple[weakref.ref[Any], int, Kind]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:  # asked for all the time: the shortest way
            return args[0].fake_device if hasattr(args[0], "fake_device") else func(*args)
        if func is _ITEM and self.phase == "optimizer":
            return 1  # optimizers read their step number; what it is changes no size
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._see(leaf, "transient")
        extra = self._workspace(func, args) if self._workspace is not None else 0
        self._look(extra)
        return out

    def mark(self, tensor: Tensor, kind: Kind) -> None:
        """Say what a tensor's storage is for, from now on."""
        key = self._see(tensor, kind)
        reference, size, before = self._known[key]
        if before != kind:
            self._known[key] = reference, size, kind
            self.now[before] -= size
            self.now[kind] += size
        self._look(0)

    def saving(self) -> AbstractContextManager[Any]:
        """Within, what is saved for a backward pass counts as activations, unless it is marked."""
        return torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor)

    def _save(self, tensor: Tensor) -> Tensor:
        key = self._see(tensor, "activations")
        if self._known[key][2] == "transient":
            self.mark(tensor, "activations")
        self.saved = max(self.saved, self.now["activations"])
        return tensor

    def _see(self, tensor: Tensor, kind: Kind) -> int:
        """The key of a tensor's storage, which is counted from now on."""
        storage = tensor.untyped_storage()
        key: int = storage._cdata
        if key not in self._known:
            size = storage.nbytes()
            self._known[key] = weakref.ref(storage, lambda _: self._gone(key)), size, kind
            self.now[kind] += size
            self._total += size
        return key

    def _gone(self, key: int) -> None:
        _, size, kind = self._known.pop(key)
        self.now[kind] -= size
        self._total -= size

    def _look(self, extra: int) -> None:
        peak = self.peaks[self.phase]
        if self._total + extra > peak.total:
            peak.total, peak.kinds = self._total + extra, self.now.copy()
            peak.kinds["transient"] += extra
