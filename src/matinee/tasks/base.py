"""What every task is to the loop: batches in, gradients and sums for the log out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from matinee.data.batch import Batch
from matinee.spans import Spans


@dataclass(frozen=True)
class Outcome:
    """Sums over the valid clips of a batch, on the device: `loss` (with gradient), and further
    ones that the log divides by the number of clips, such as "top1".
    """

    loss: Tensor
    sums: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One optimizer step, as a task sees it: `parts` batches of `clips` clips together.

    `reseed(part)` sets torch's generator for a batch, so that it can be computed twice alike.
    """

    clips: int
    parts: int
    next_batch: Callable[[], Batch]
    reseed: Callable[[int], None]
    autocast: Callable[[], AbstractContextManager[object]]
    spans: Spans


@dataclass(frozen=True)
class StepOutcome:
    """Sums over the valid clips of a step, without gradient: `clips` of them, from `samples`."""

    loss: Tensor
    sums: dict[str, Tensor]
    clips: int
    samples: tuple[str, ...]


class Task(nn.Module, ABC):
    """Joins a model to batches. `model` holds all that is trained."""

    kind: ClassVar[str]
    headline: ClassVar[str]
    """The validation metric that counts."""
    model: nn.Module

    @abstractmethod
    def forward(self, batch: Batch) -> Outcome:
        """Loss and sums over the valid clips; invalid clips weigh nothing.

        They still pass through the network, and so through batch normalisation's statistics: a
        masked batch stays the size it was.
        """

    def gradients(self, step: Step) -> StepOutcome:
        """Add the gradients of a step's loss to the parameters.

        Losses are sums divided by the clips of the whole step, so that several batches equal one
        large one.
        """
        total: Outcome | None = None
        clips, samples = 0, list[str]()
        for part in range(step.parts):
            batch = step.next_batch()
            step.reseed(part)
            with step.spans("forward"), step.autocast():
                outcome = self(batch)
            with step.spans("backward"):
                (outcome.loss / step.clips).backward()
            total = add(total, outcome)
            clips += batch.num_valid
            samples.extend(batch.samples)
        assert total is not None
        return StepOutcome(total.loss, total.sums, clips, tuple(samples))


def place(task: Task, device: torch.device) -> None:
    """Move a task to a device; 2-D convolutions in the layout they are fastest in."""
    task.to(device)
    for module in task.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)


def add(total: Outcome | None, outcome: Outcome) -> Outcome:
    """The sums of two outcomes, without gradients."""
    loss = outcome.loss.detach()
    sums = {name: value.detach() for name, value in outcome.sums.items()}
    if total is None:
        return Outcome(loss, sums)
    return Outcome(total.loss + loss, {name: total.sums[name] + sums[name] for name in sums})
