"""A moving average of the weights, which evaluates better than the weights themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from matinee.training.parallel.whole import like


class Ema:
    """Averages of a model's trained parameters and floating buffers, under the model's names.

    What is frozen, and whole numbers, are the model's own. The first updates weigh more than the
    later: before update n (from 0) min(decay, (1 + n) / (10 + n)) of the average stays, so that it
    soon forgets the initial weights. Works on whole and on divided tensors (FSDP2).

    Source: averages of weights, arXiv 1803.05407, arXiv 1703.01780; warm-up as in TensorFlow's
    `tf.train.ExponentialMovingAverage` (`num_updates`).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"a decay of {decay}: in [0, 1)")
        self.decay = decay
        self._swapped = False
        self._averages = {name: t.detach().clone() for name, t in _averaged(model).items()}
        divided = [name for name, t in self._averages.items() if isinstance(t, DTensor)]
        whole = [name for name, t in self._averages.items() if not isinstance(t, DTensor)]
        self._kinds = [names for names in (whole, divided) if names]  # no kernel takes both

    def decay_of(self, updates: int) -> float:
        """The part of the average that stays in the next update after `updates` ones."""
        return min(self.decay, (1 + updates) / (10 + updates))

    @torch.no_grad()
    def update(self, model: nn.Module, updates: int) -> None:
        """Move towards the model, after the first `updates` updates. Nothing waits for the device.

        A step that is skipped (fp16) is none, and must skip this too.
        """
        assert not self._swapped, "the averages are in the model"
        weight = 1 - self.decay_of(updates)
        current = _averaged(model)
        for names in self._kinds:
            averages = [self._averages[name] for name in names]
            torch._foreach_lerp_(averages, [current[name] for name in names], weight)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Within, the model has the averages, and this holds the model's values instead.

        They are exchanged one by one, so that no second copy is needed, and back again exactly.
        """
        self._swap(model)
        self._swapped = True
        try:
            yield
        finally:
            self._swap(model)
            self._swapped = False

    @torch.no_grad()
    def _swap(self, model: nn.Module) -> None:
        _divide(model)
        for name, value in _averaged(model).items():
            held = value.clone()
            value.copy_(self._averages[name])
            self._averages[name].copy_(held)

    def state_dict(self) -> dict[str, Any]:
        """The averages by name, as whole or divided as the model's tensors are."""
        assert not self._swapped, "the averages are in the model"
        return dict(self._averages)

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take averages over; whole ones are divided where the model is, on all ranks at once.

        Raises:
            KeyError: names that are not this model's.
        """
        if state.keys() != self._averages.keys():
            different = sorted(state.keys() ^ self._averages.keys())
            raise KeyError(f"averages of other tensors than the model's, such as {different[0]}")
        for name, average in self._averages.items():
            average.copy_(like(state[name], average))


def _averaged(model: nn.Module) -> dict[str, Tensor]:
    """The model's own tensors: trained parameters and floating buffers that checkpoints hold."""
    tensors: dict[str, Tensor] = {
        name: p for name, p in model.named_parameters() if p.requires_grad
    }
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            passing = name in module._non_persistent_buffers_set
            if buffer.is_floating_point() and not passing:
                tensors[f"{prefix}.{name}" if prefix else name] = buffer
    return tensors


def _divide(model: nn.Module) -> None:
    """Let FSDP drop whole weights it still holds from a forward pass: they would be old ones."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
