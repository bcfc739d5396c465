"""One training step on fake tensors: how much is alive when, and for what.

# Note [A step of fake tensors]
The real optimizer comes first, twice: its first step makes its state, its second is looked at,
with clipping and the moving average. Then the task's own `gradients` runs, with its accumulation
and feature cache. Two micro-batches stand for any number of them: from the second on each meets
the same memory. What grows with their number (inputs kept for a second pass, the loss over all
pairs) is added in memory.py.

Ranks are stood in for by what they leave in memory. DDP lets gradients be views of its buckets:
each that a backward pass makes is copied into its place and freed. Parts that are not averaged
(`no_sync`) come before that and lie beside the buckets. With FSDP a gradient is cut to the rank's
share as soon as it is there; parts that are not averaged are kept whole, in float32.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from matinee.data.batch import Batch
from matinee.measure.plan.fake import (
    NORMS,
    Device,
    build_fake,
    fake_batch,
    follow_gpu,
    workspace,
)
from matinee.measure.plan.live import Kind, LiveBytes, Peak, Phase
from matinee.models.blocks import find_blocks
from matinee.spans import Spans
from matinee.tasks.base import Step, Task
from matinee.tasks.config import ContrastiveConfig
from matinee.tasks.losses import info_nce, max_margin
from matinee.training.config import TrainConfig
from matinee.training.optim.build import build_optimizer
from matinee.training.optim.clip import clip_gradients
from matinee.training.optim.ema import Ema
from matinee.training.precision import Precision, autocast

AVERAGED = 1000
"""Updates before the step, of the moving average: any number."""


@dataclass(frozen=True)
class Footprint:
    """What a step of one rank needs, in bytes.

    `peaks` has the fullest moment of each phase. `saved` is the most that was saved for a backward
    pass, without weights and inputs. `at_loss` is what was alive when the first loss had been
    computed and nothing was sent backwards yet. `state` and `shapes` have an entry for each trained
    weight: bytes of its optimizer state, and its shape. `average` is the moving average.
    """

    peaks: dict[Phase, Peak]
    saved: int
    at_loss: Counter[Kind]
    state: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    average: int
    units: tuple[int, ...]
    """Numbers in the weights of each block, and last in those outside of blocks."""

    @property
    def units_total(self) -> int:
        """Numbers in all weights."""
        return sum(self.units)


@lru_cache(maxsize=128)
def step_footprint(
    config: TrainConfig,
    *,
    micro_batch: int,
    parts: int,
    world: int,
    device: Device,
    precision: Precision,
    classes: int,
) -> Footprint:
    """Run one step on fake tensors. See Note [A step of fake tensors].

    Args:
        parts: micro-batches of the step, 1 or 2.

    Raises:
        ConfigError: settings that do not fit each other.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    task = build_fake(config, mode, classes=classes)
    if device == "cuda":
        follow_gpu(task)
    live = LiveBytes(partial(workspace, device))
    with mode, live:
        for parameter in task.parameters():
            live.mark(parameter, "parameters")
        for buffer in task.buffers():
            live.mark(buffer, "buffers")
        state, average = _optimize(task, config, device, live)
        if config.parallel.strategy == "fsdp" and world > 1 and precision == "bf16":
            _to_half(task.model, live)
        gradients = _Gradients(task, config, parts, world, live)
        told = _Told(live)

        def next_batch() -> Batch:
            batch = fake_batch(config, micro_batch, classes=classes)
            live.mark(batch.video, "inputs")
            return batch

        with live.saving():
            task.gradients(
                Step(
                    clips=micro_batch * parts, parts=parts, world=1, next_batch=next_batch,
                    reseed=lambda part: None, compute=task.compute, part=gradients.part,
                    scaled=lambda loss: loss,
                    autocast=lambda: autocast(precision, torch.device("cpu")), spans=told,
                )
            )  # fmt: skip
    shapes = tuple(tuple(p.shape) for p in task.parameters() if p.requires_grad)
    return Footprint(
        live.peaks, live.saved, told.at_loss, tuple(state), shapes, average, _units(task.model)
    )


def _optimize(
    task: Task, config: TrainConfig, device: Device, live: LiveBytes
) -> tuple[list[int], int]:
    """Steps of the optimizer alone; what each weight's state takes, and the moving average."""
    optim = config.optim
    optimizer = build_optimizer(task.model, optim, fused=config.speed.fused)
    for group in optimizer.param_groups:
        if device == "cuda" and "foreach" in group and not group.get("fused"):
            group["foreach"] = True
    trained = [p for p in task.parameters() if p.requires_grad]
    ema = None if optim.ema is None else Ema(task.model, optim.ema)
    average = 0
    if ema is not None:
        for tensor in ema.state_dict().values():
            live.mark(tensor, "optimizer")
            average += tensor.nbytes
    live.phase = "optimizer"
    for _ in range(2):
        live.peaks["optimizer"].total = 0
        for p in trained:
            p.grad = torch.empty_like(p)
            live.mark(p.grad, "gradients")
        clip_gradients(trained, optim.clip_norm, optim.clip_value)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for tensor in tree_leaves([optimizer.state[p] for p in trained]):
            if isinstance(tensor, Tensor):
                live.mark(tensor, "optimizer")
        if ema is not None:
            ema.update(task.model, AVERAGED)
    # The weights' state must stay alive as long as they do.
    task.register_module("optimizer", _Kept([optimizer, ema]))
    return [_bytes(optimizer.state[p]) for p in trained], average


@dataclass(frozen=True)
class LossFootprint:
    """Bytes of a contrastive loss over all pairs of a step, besides its features.

    `saved` for its backward pass, `peak` at its fullest moment.
    """

    saved: int
    peak: int


@lru_cache(maxsize=128)
def loss_footprint(task: ContrastiveConfig, own: int, clips: int) -> LossFootprint:
    """Run the loss on fake features.

    Args:
        own: clips of this rank, whose rows alone a local loss computes.
        clips: of all ranks.
    """
    rows = slice(0, own) if task.local_loss else slice(None)
    live = LiveBytes()
    with FakeTensorMode(), live:
        video, text = (torch.empty(clips, task.embed_dim, requires_grad=True) for _ in range(2))
        scale = torch.ones((), requires_grad=True)
        for tensor in (video, text):
            live.mark(tensor, "inputs")
        valid = torch.ones(clips, dtype=torch.bool)
        relevancy = torch.empty(clips, clips) if task.graded else None
        with live.saving():
            if task.loss == "info-nce":
                each = info_nce(video, text, scale.exp(), valid, rows=rows)
            else:
                each = max_margin(video, text, relevancy, valid, margin=task.margin, rows=rows)
            with torch.no_grad():
                similarity = (video[:own] @ text.T).masked_fill(~valid, -torch.inf)
                hits = similarity.argmax(dim=1)
                del similarity, hits
            torch.autograd.backward(each.sum())
        inputs = live.now["inputs"]
    peak = max(peak.total for peak in live.peaks.values())
    return LossFootprint(live.saved, peak - inputs)


class _Kept(nn.Module):
    """Keeps things alive with a module."""

    def __init__(self, things: list[Any]) -> None:
        super().__init__()
        self.things = things


def _bytes(state: dict[str, Any]) -> int:
    return sum(t.nbytes for t in tree_leaves(state) if isinstance(t, Tensor))


class _Gradients:
    """What becomes of gradients as they arrive. See Note [A step of fake tensors]."""

    def __init__(
        self, task: Task, config: TrainConfig, parts: int, world: int, live: LiveBytes
    ) -> None:
        self._live, self._world, self._last = live, world, parts - 1
        self._no_sync = config.parallel.no_sync
        self._averaging = True
        self._whole: dict[nn.Parameter, Tensor] = {}
        self._shares: list[Tensor] = []
        trained = [p for p in task.parameters() if p.requires_grad]
        arrived = self._alone
        if world > 1:
            arrived = self._divided if config.parallel.strategy == "fsdp" else self._in_buckets
        if arrived == self._in_buckets:
            for p in trained:
                self._whole[p] = torch.empty_like(p)
                live.mark(self._whole[p], "gradients")
        hooked: Any = trained  # untyped in torch
        for p in hooked:
            p.register_post_accumulate_grad_hook(arrived)

    def part(self, number: int) -> AbstractContextManager[object]:
        self._averaging = number == self._last or not self._no_sync
        return nullcontext()

    def _alone(self, p: Tensor) -> None:
        assert p.grad is not None
        self._live.mark(p.grad, "gradients")

    def _in_buckets(self, p: Tensor) -> None:
        assert p.grad is not None and isinstance(p, nn.Parameter)
        place = self._whole[p]
        if not self._averaging:
            self._live.mark(p.grad, "communication")
        elif p.grad.untyped_storage()._cdata != place.untyped_storage()._cdata:
            place.copy_(p.grad)
            p.grad = place

    def _divided(self, p: Tensor) -> None:
        assert isinstance(p, nn.Parameter)
        if self._averaging:
            share = torch.empty(p.numel() // self._world + 1, dtype=torch.float32)
            self._live.mark(share, "gradients")
            self._shares.append(share)
            self._whole.pop(p, None)
        elif p not in self._whole:
            self._whole[p] = torch.empty(p.shape, dtype=torch.float32)
            self._live.mark(self._whole[p], "communication")
        p.grad = None


class _Told(Spans):
    """Learns from a task where in its step it is."""

    def __init__(self, live: LiveBytes) -> None:
        super().__init__(on=False)
        self._live = live
        self.at_loss: Counter[Kind] = Counter()

    def __call__(self, name: str) -> AbstractContextManager[None]:
        if name == "backward" and not self.at_loss:
            self.at_loss = self._live.now.copy()
        if name in ("forward", "backward"):
            self._live.phase = "forward" if name == "forward" else "backward"
        return super().__call__(name)


def _to_half(model: nn.Module, live: LiveBytes) -> None:
    """Weights as FSDP gathers them for bf16: but for scalars and norms."""
    for module in model.modules():
        if isinstance(module, (*NORMS, nn.modules.batchnorm._BatchNorm)):
            continue
        for name, p in list(module._parameters.items()):
            if p is not None and p.ndim and p.is_floating_point():
                half = nn.Parameter(p.detach().to(torch.bfloat16), p.requires_grad)
                module._parameters[name] = half
                live.mark(half, "parameters")


def _units(model: nn.Module) -> tuple[int, ...]:
    """As FSDP divides a model: see Note [Divided weights] in training/parallel/fsdp.py."""
    blocks = [sum(p.numel() for p in block.parameters()) for block in find_blocks(model)]
    return (*blocks, sum(p.numel() for p in model.parameters()) - sum(blocks))
