"""What every task is to the loop: batches in, gradients and sums for the log out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from matinee.data.batch import Batch
from matinee.models.layout import to_channels_last
from matinee.models.resize import resize_clips
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
    """One optimizer step, as a task sees it on one rank.

    `clips` clips together pass through `world` ranks, on each in `parts` micro-batches. Gradients
    are averaged over ranks: a loss summed over this rank's clips is divided by `clips / world`.

    `next_batch()` gives a micro-batch. `reseed(part)` sets torch's generator for it, so that it can
    be computed twice alike. `compute(x)` is `Task.compute(x)` by way of what joins the ranks, and
    every forward pass goes through it. `part(number)` is around forward and backward pass of a
    micro-batch: gradients are averaged with the last one. `scaled(loss)` is what the backward pass
    begins with (fp16 needs large gradients).
    """

    clips: int
    parts: int
    world: int
    next_batch: Callable[[], Batch]
    reseed: Callable[[int], None]
    compute: Callable[[Any], Any]
    part: Callable[[int], AbstractContextManager[object]]
    scaled: Callable[[Tensor], Tensor]
    autocast: Callable[[], AbstractContextManager[object]]
    spans: Spans


@dataclass(frozen=True)
class StepOutcome:
    """Sums over this rank's valid clips of a step, without gradient: `clips` of them, from
    `samples`.
    """

    loss: Tensor
    sums: dict[str, Tensor]
    clips: int
    samples: tuple[str, ...]


class Task(nn.Module, ABC):
    """Joins a model to batches. `model` holds all that is trained."""

    kind: ClassVar[str]
    headline: ClassVar[str]
    """The validation metric that counts."""
    lower_is_better: ClassVar[bool] = False
    """Of the headline."""
    model: nn.Module

    @abstractmethod
    def forward(self, batch: Batch) -> Outcome:
        """Loss and sums over the valid clips; invalid clips weigh nothing.

        They still pass through the network, and so through batch normalisation's statistics: a
        masked batch stays the size it was.
        """

    def resize(self, *, frames: int, size: int) -> None:
        """Take clips of `frames` frames of `size` pixels from now on.

        Raises:
            ConfigError: the network cannot.
        """
        resize_clips(self.model, frames=frames, size=size)

    def compute(self, part: Any) -> Any:
        """What parameters do to a micro-batch; for most tasks the whole loss."""
        return self(part)

    def gradients(self, step: Step) -> StepOutcome:
        """Add the gradients of a step's loss to the parameters.

        Losses are sums divided by the clips of the whole step, so that several batches equal one
        large one.
        """
        share = step.world / step.clips
        total: Outcome | None = None
        clips, samples = 0, list[str]()
        for part in range(step.parts):
            batch = step.next_batch()
            step.reseed(part)
            with step.part(part):
                with step.spans("forward"), step.autocast():
                    outcome: Outcome = step.compute(batch)
                with step.spans("backward"):
                    step.scaled(outcome.loss * share).backward()  # type: ignore[no-untyped-call]
            total = add(total, outcome)
            clips += batch.num_valid
            samples.extend(batch.samples)
        assert total is not None
        return StepOutcome(total.loss, total.sums, clips, tuple(samples))


def place(task: Task, device: torch.device, *, channels_last: bool = True) -> None:
    """Move a task to a device; convolutions with channels innermost, as they are fastest."""
    task.to(device)
    if channels_last:
        to_channels_last(task)


def add(total: Outcome | None, outcome: Outcome) -> Outcome:
    """The sums of two outcomes, without gradients."""
    loss = outcome.loss.detach()
    sums = {name: value.detach() for name, value in outcome.sums.items()}
    if total is None:
        return Outcome(loss, sums)
    return Outcome(total.loss + loss, {name: total.sums[name] + sums[name] for name in sums})
