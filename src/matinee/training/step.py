"""One optimizer step on all ranks: micro-batches, gradients, clipping, update.

# Note [No waiting]
Between two log lines the host never waits for the device: losses and norms stay there, and what is
not finite is remembered there. What the host must know (how many clips could be read, whether
somebody asked to stop) it knows before the forward pass; ranks add these numbers up on the host
while the device computes. fp16 is the exception: whether gradients overflowed decides what happens
next.

# Note [Waiting for other ranks]
A rank's backward pass ends with waiting: for the gradients of slower ranks, and for what of their
exchange was not hidden behind it. When the engine has computed all gradients of this rank it runs
its callbacks in order, and ours was queued before that of DistributedDataParallel, which waits. So
the span "backward" ends there and the rest counts as "comm", without a synchronisation; on a GPU an
event marks it. What cannot be told apart so:

- "comm" holds waiting and exchange together. The rank with the least waited least: what others have
  beyond it is waiting for the slowest rank, and only what it has itself is the exchange.
- Features that a contrastive loss gathers travel inside "forward" and "backward".
- FSDP waits for weights within both passes; its spans are the same on all ranks, whoever is slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from matinee.data.batch import Batch
from matinee.data.random import integer_seed
from matinee.errors import MatineeError
from matinee.spans import Pulse, Spans
from matinee.tasks.base import Outcome, Step, Task
from matinee.training.optim.clip import clip_gradients
from matinee.training.optim.noise import NoiseScale
from matinee.training.parallel.ranks import Pending, Ranks
from matinee.training.parallel.whole import reduce_whole
from matinee.training.parallel.wrap import Wrapped, average_statistics
from matinee.training.precision import autocast

SMALLEST_SCALE = 2.0**-14
"""Of fp16's loss: below, gradients overflow whatever it is."""


@dataclass(frozen=True)
class Stepped:
    """What a step did.

    `loss` and `sums` are over this rank's valid clips, `norm` is of the whole gradient before
    clipping, all on the device. `clips` were read on all ranks together, `samples` are this rank's.
    `skipped`: fp16 gradients overflowed, and no weight changed. `signals` counts the ranks that
    sent each of the signals asked about.
    """

    loss: Tensor
    sums: dict[str, Tensor]
    norm: Tensor
    clips: int
    samples: tuple[str, ...]
    skipped: bool
    signals: tuple[int, ...]


class StepRunner:
    """Makes steps of a task: `runner(batches, clips=…, number=…, lr=…)`.

    Args:
        wrapped: the task on its ranks.
        parts: micro-batches a step on each rank.
        noise: estimates the gradient noise scale, from the first part of each rank and the whole
            step; needs two parts or more.
    """

    def __init__(
        self,
        task: Task,
        optimizer: torch.optim.Optimizer,
        wrapped: Wrapped,
        ranks: Ranks,
        *,
        parts: int,
        seed: int,
        precision: str = "fp32",
        clip_norm: float | None = None,
        clip_value: float | None = None,
        noise: NoiseScale | None = None,
        spans: Spans | None = None,
    ) -> None:
        self.task, self.optimizer, self.wrapped, self.ranks = task, optimizer, wrapped, ranks
        self.parts, self.seed, self.precision = parts, seed, precision
        self.clip_norm, self.clip_value, self.noise = clip_norm, clip_value, noise
        self.spans = spans or Spans()
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=precision == "fp16")
        if self.scaler.is_enabled() and hasattr(optimizer, "_step_supports_amp_scaling"):
            # Told of an overflow, fused kernels leave weights alone, but SGD's makes momentum of
            # uninitialised memory if it is the first step (PyTorch 2.14): do not call them then.
            optimizer._step_supports_amp_scaling = False
        self.parameters = [p for p in task.parameters() if p.requires_grad]
        self._checked = ranks.world == 1
        # torch.manual_seed seeds the same, but takes 0.6 ms where a GPU is not in use yet.
        self._generators = [torch.default_generator]
        if ranks.device.type == "cuda":
            self._generators.append(torch.cuda.default_generators[ranks.device.index or 0])

    def __call__(
        self,
        batches: Iterator[Batch],
        *,
        clips: int,
        number: int,
        lr: float,
        momentum: float | None = None,
        signals: Sequence[bool] = (),
    ) -> Stepped:
        """One step.

        Args:
            clips: the global batch.
            number: of the step (from 0); with the seed, what dropout starts from.
            lr: the rate that groups' `lr_scale` multiplies.
            momentum: of SGD, or the first beta; None leaves it.
            signals: what ranks tell each other; known to all after the step.

        Raises:
            MatineeError: not one clip could be read, or fp16 overflows at any scale.
        """
        self.spans.pulse.step = number
        told = _Told(self.ranks, self.parts, self.spans.pulse, signals)

        def next_batch() -> Batch:
            with self.spans("data_wait"):
                batch = next(batches)
            told.count(batch.num_valid)
            return batch

        def reseed(part: int) -> None:
            micro = part * self.ranks.world + self.ranks.rank
            seed = integer_seed(self.seed, micro, number, "dropout")
            for generator in self._generators:
                generator.manual_seed(seed)

        small: list[Tensor] = []
        outcome = self.task.gradients(
            Step(
                clips=clips, parts=self.parts, world=self.ranks.world, next_batch=next_batch,
                reseed=reseed, compute=self._compute,
                part=lambda part: self._part(part, small), scaled=self.scaler.scale,
                autocast=lambda: autocast(self.precision, self.ranks.device), spans=self.spans,
            )
        )  # fmt: skip
        if not self._checked:
            self._check_used()
        with self.spans("comm"):
            read, *sent = told.all()
            reduce_whole(self.parameters, self.ranks)
        if read == 0:
            raise MatineeError(
                f"step {number + 1}: none of the batch's {clips} clips could be read; what was "
                "masked is in the log above"
            )
        with self.spans("optimizer"):
            norm, skipped = self._update(clips / read, lr, momentum)
            if small and not skipped and read == clips:
                self._note_noise(small[0], norm, clips)
        with self.spans("comm"):
            average_statistics(self.task.model, self.ranks)
        return Stepped(
            outcome.loss, outcome.sums, norm, read, outcome.samples, skipped, tuple(sent)
        )

    def _compute(self, part: Any) -> Any:
        """A forward pass, whose backward pass tells when this rank has done its own."""
        computed = self.wrapped.compute(part)
        if self.ranks.world > 1 and self.spans.on:
            found = (computed.loss,) if isinstance(computed, Outcome) else computed
            for tensor in found:
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    tensor.register_hook(self._backward_began)  # type: ignore[no-untyped-call]
        return computed

    def _backward_began(self, _: Tensor) -> None:
        """See Note [Waiting for other ranks]."""
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: self.spans.split("backward", "comm"))

    def _check_used(self) -> None:
        """Ranks wait for the gradients of all weights: refuse those that have none."""
        unused = [n for n, p in self.task.named_parameters() if p.requires_grad and p.grad is None]
        if unused:
            raise MatineeError(
                f"{len(unused)} weights have no part in the loss, the first is {unused[0]}: such a "
                "network cannot be trained on several ranks"
            )
        self._checked = True

    def _update(self, rescale: float, lr: float, momentum: float | None) -> tuple[Tensor, bool]:
        """Move the weights; the gradient's norm, and whether the step was skipped."""
        self.scaler.unscale_(self.optimizer)
        if rescale != 1:  # clips that could not be read weigh nothing: the mean is over the others
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            torch._foreach_mul_(gradients, rescale)
        norm = clip_gradients(self.parameters, self.clip_norm, self.clip_value)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
            if momentum is not None:
                set_momentum(group, momentum)
        self.scaler.step(self.optimizer)
        skipped = self._adapt_scale()
        self.optimizer.zero_grad(set_to_none=True)
        return norm, skipped

    def _adapt_scale(self) -> bool:
        """Whether fp16 gradients overflowed, so that the step was left out."""
        if not self.scaler.is_enabled():
            return False
        before = self.scaler.get_scale()
        self.scaler.update()
        after = self.scaler.get_scale()
        if after < SMALLEST_SCALE:
            raise MatineeError(
                f"fp16 gradients overflow even with the loss scaled by {before:g}: use "
                "--speed.precision bf16 or fp32, or lower --optim.lr"
            )
        return after < before

    @contextmanager
    def _part(self, part: int, small: list[Tensor]) -> Iterator[None]:
        with self.wrapped.part(part):
            yield
        if self.noise is not None and part == 0:
            norm = clip_gradients(self.parameters, None, None)
            # The gradient is divided by all clips of this rank, of which one part is there.
            small.append((norm * self.parts / self.scaler.scale(norm.new_ones(()))) ** 2)

    def _note_noise(self, small_sq: Tensor, norm: Tensor, clips: int) -> None:
        assert self.noise is not None
        mean = self.ranks.sum(small_sq) / self.ranks.world
        micro = clips // (self.parts * self.ranks.world)
        self.noise.update(mean, norm**2, micro, clips)


class _Told:
    """Adds up over ranks what each knows when its last batch has come, while it computes."""

    def __init__(self, ranks: Ranks, parts: int, pulse: Pulse, signals: Sequence[bool]) -> None:
        self._ranks, self._left, self._pulse = ranks, parts, pulse
        self._values = [0, *(int(signal) for signal in signals)]
        self._pending: Pending | None = None

    def count(self, valid: int) -> None:
        self._values[0] += valid
        self._left -= 1
        if self._left == 0:
            self._pulse.arrivals += 1
            self._pending = self._ranks.add_up(self._values)

    def all(self) -> list[int]:
        """Clips that were read, and how many ranks sent each signal."""
        assert self._pending is not None
        return self._pending.result()


def set_momentum(group: dict[str, Any], value: float) -> None:
    """Of SGD's kin the momentum, of Adam's kin the first beta."""
    if "momentum" in group:
        group["momentum"] = value
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
