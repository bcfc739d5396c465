"""Whole training steps before and after: loading, forward, backward, update.

# Note [A turn of steps]
Loaders work ahead. One that waited while other arms were measured would hand out clips that cost
nothing, so each turn starts its loader anew. The first batches, one for each worker, are made at
the same time and not counted; batches counted are a multiple of the workers, so that what was
begun before the first of them and what is left after the last weigh alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch

from matinee.data.batch import Batch
from matinee.data.clips import ClipPlan, ClipSpec
from matinee.data.loader import ClipLoader
from matinee.measure.arms import Turns, take_turns
from matinee.measure.reproduce.avion.before import BeforeClips, before_batches, set_attention
from matinee.measure.reproduce.avion.footage import Footage, Video
from matinee.measure.reproduce.avion.options import STRIDE, Options
from matinee.models.build import build_encoder
from matinee.models.config import Joint, ModelConfig
from matinee.models.recompute import recompute_blocks
from matinee.spans import Spans
from matinee.tasks.base import Task
from matinee.tasks.build import build_task
from matinee.tasks.config import ClipTextConfig, ContrastiveConfig, MaskedConfig, TaskConfig
from matinee.tasks.vocabulary import Vocabulary
from matinee.training.config import OptimConfig
from matinee.training.optim.build import build_optimizer
from matinee.training.parallel.config import ParallelConfig
from matinee.training.parallel.ranks import Ranks
from matinee.training.parallel.wrap import wrap
from matinee.training.step import StepRunner

MOST = 8
"""Batches a worker that a turn may take."""
Batches = Callable[[], Any]
"""Begins a loader: a context manager with its batches."""


@dataclass(frozen=True)
class Work:
    """What is trained: its clips, batch, task and network."""

    name: str
    spec: ClipSpec
    batch: int
    task: TaskConfig
    model: ModelConfig


def masked_work(options: Options) -> Work:
    """VideoMAE pretraining; the decoder is half as wide as the encoder, as published."""
    model = ModelConfig(options.backbone, Joint(tubelet=2, positions="sine"), dropout=0.0)
    with torch.device("meta"):
        width = build_encoder(model, size=options.scale.step_size)[0].num_features // 2
    return Work(
        "masked",
        clip_spec(options, options.frames, "multi-scale"),
        options.batch,
        MaskedConfig(decoder_width=width, decoder_heads=max(1, width // 64)),
        model,
    )


def contrastive_work(options: Options) -> Work:
    """Clips of four frames and captions, in a text tower of a size that suits a ViT-S."""
    return Work(
        "contrastive",
        clip_spec(options, min(4, options.frames), "random-resized"),
        options.batch,
        ContrastiveConfig(text=ClipTextConfig(width=256, heads=4, layers=4)),
        ModelConfig(options.backbone, Joint(), dropout=0.0),
    )


def clip_spec(options: Options, frames: int, crop: Any) -> ClipSpec:
    """Clips of the training steps."""
    return ClipSpec(
        frames=frames, sampling="dense", stride=STRIDE, size=options.scale.step_size, crop=crop,
        scale=(0.5, 1.0), flip="horizontal",
    )  # fmt: skip


@dataclass(frozen=True)
class Loaders:
    """Loaders of clips of the same plans: `before` from a video file, `after` from the pack."""

    footage: Footage
    spec: ClipSpec
    batch: int
    workers: int
    _turn: Iterator[int] = field(default_factory=count)

    @contextmanager
    def before(self, video: Video) -> Iterator[Iterator[Batch]]:
        plans, info = self.plans(), self.footage.pack.info(0)
        clips = BeforeClips(
            video, plans, (info.width, info.height), self.spec.size, self.footage.frames
        )
        batches = before_batches(
            clips, batch=self.batch, workers=self.workers, texts=[self._text(p) for p in plans]
        )
        try:
            yield batches
        finally:
            batches.close()  # type: ignore[attr-defined]  # a generator: ends the workers

    @contextmanager
    def after(self, device: str = "cpu") -> Iterator[Iterator[Batch]]:
        with self._loader(device) as loader:
            yield iter(loader)

    def plans(self) -> list[ClipPlan]:
        """Of the clips, in an order drawn anew each time."""
        with self._loader("meta") as loader:
            order = np.random.default_rng(next(self._turn)).permutation(loader.num_items)
            return [loader.plan(0, int(item)) for item in order]

    def _loader(self, device: str) -> ClipLoader:
        pack = self.footage.pack
        repeats = -(-MOST * self.workers * self.batch // len(pack))
        return ClipLoader(
            pack, split="train", clip=self.spec, batch_size=self.batch, repeats=repeats,
            workers=self.workers, device=device,
        )  # fmt: skip

    def _text(self, plan: ClipPlan) -> str:
        pack = self.footage.pack
        infos = (pack.info(row) for row in range(len(pack)))
        return next(info.text or "" for info in infos if info.id == plan.sample)


def measure_loaders(
    loaders: Loaders, videos: dict[str, Video], rounds: int, on_turn: Callable[[int, int], None]
) -> Turns:
    """Clips a second of each loader alone: before from each of `videos`, and after, with a device
    that is this CPU and with one that costs it nothing.
    """
    arms: dict[str, Callable[[], float]] = {
        f"before, {name}": _rate(loaders, partial(loaders.before, video), 1)
        for name, video in videos.items()
    }
    arms[AFTER] = _rate(loaders, loaders.after, 6)
    arms[AFTER_APART] = _rate(loaders, partial(loaders.after, "meta"), 6)
    return take_turns(arms, rounds, warm_up=0, on_turn=on_turn)


AFTER, AFTER_APART = "matinee", "matinee, device apart"


def _rate(loaders: Loaders, begin: Batches, each: int) -> Callable[[], float]:
    """Clips a second over `each` batches a worker. See Note [A turn of steps]."""

    def run() -> float:
        with begin() as batches:
            for _ in range(loaders.workers):
                next(batches)
            start = time.perf_counter()
            for _ in range(each * loaders.workers):
                next(batches)
            seconds = time.perf_counter() - start
        return each * loaders.workers * loaders.batch / seconds

    return run


class StepArm:
    """Steps of one way to train; a call gives the seconds a step of a turn. `spans` holds those
    of each turn by stretch, a step. See Note [A turn of steps].
    """

    def __init__(
        self,
        task: Task,
        begin: Batches,
        *,
        batch: int,
        workers: int,
        explicit: bool,
        precision: str,
    ) -> None:
        alone = Ranks(0, 1, 1, torch.device("cpu"))
        optim = OptimConfig(name="adamw", lr=1e-5, clip_norm=None)
        self._spans = Spans()
        self._runner = StepRunner(
            task, build_optimizer(task.model, optim),
            wrap(task, ParallelConfig(), alone, parts=1, bf16=False), alone, parts=1, seed=0,
            precision=precision, spans=self._spans,
        )  # fmt: skip
        self._task, self._begin, self._batch = task, begin, batch
        self._workers, self._explicit = workers, explicit
        self._number = count()
        self.spans: list[dict[str, float]] = []

    def __call__(self) -> float:
        set_attention(self._task, explicit=self._explicit)
        with self._begin() as batches:
            for _ in range(self._workers):
                self._step(batches)
            self._spans.take()
            begin = time.perf_counter()
            for _ in range(self._workers):
                self._step(batches)
            seconds = (time.perf_counter() - begin) / self._workers
            taken = self._spans.take()
        self.spans.append({name: value / self._workers for name, value in taken.items()})
        return seconds

    def _step(self, batches: Iterator[Batch]) -> None:
        self._runner(batches, clips=self._batch, number=next(self._number), lr=1e-5)


def step_arms(
    work: Work, loaders: Loaders, videos: dict[str, Video], *, recompute: bool
) -> dict[str, StepArm]:
    """The levers one after the other: before from each of `videos`, then each lever added."""
    vocabulary = Vocabulary(())
    torch.manual_seed(0)
    task = build_task(
        work.task, work.model, frames=work.spec.frames, size=work.spec.size, vocabulary=vocabulary
    ).task.train()

    def arm(begin: Batches, *, explicit: bool, precision: str, task: Task = task) -> StepArm:
        return StepArm(
            task, begin, batch=work.batch, workers=loaders.workers, explicit=explicit,
            precision=precision,
        )  # fmt: skip

    arms = {
        f"before, {name}": arm(partial(loaders.before, video), explicit=True, precision="fp32")
        for name, video in videos.items()
    }
    arms["+ matinee's loader"] = arm(loaders.after, explicit=True, precision="fp32")
    arms["+ SDPA"] = arm(loaders.after, explicit=False, precision="fp32")
    arms["+ bf16"] = arm(loaders.after, explicit=False, precision="bf16")
    if recompute:
        other = deepcopy(task)
        recompute_blocks(other.model, 1)
        arms["+ blocks recomputed"] = arm(
            loaders.after, explicit=False, precision="bf16", task=other
        )
    return arms


def mean_spans(arm: StepArm) -> dict[str, float]:
    """Seconds a step by stretch: the median over turns of each."""
    names = dict.fromkeys(name for turn in arm.spans for name in turn)
    return {n: float(np.median([turn.get(n, 0.0) for turn in arm.spans])) for n in names}


def evaluation_plans(options: Options, footage: Footage, frames: int) -> Sequence[ClipPlan]:
    """Plans for parts that read clips one by one."""
    spec = replace(clip_spec(options, frames, "random-resized"), size=options.scale.size)
    return Loaders(footage, spec, 1, options.workers).plans()
