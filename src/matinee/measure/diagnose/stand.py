"""A run's parts on a test stand: the steps of a recipe, made in several ways, with nothing kept.

Steps are those of training, at a learning rate of 0: weights stay as they are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from matinee.data.batch import Batch
from matinee.data.epochs import EpochLoader
from matinee.data.loader import ClipLoader
from matinee.measure.diagnose.readings import Reading
from matinee.measure.diagnose.trace import Trace, write_trace
from matinee.models.compile import compile_model
from matinee.spans import Pulse
from matinee.training.config import TrainConfig
from matinee.training.device_spans import spans_on
from matinee.training.optim.build import build_optimizer
from matinee.training.optim.ema import Ema
from matinee.training.parallel.ranks import Ranks
from matinee.training.parallel.wrap import Wrapped, wrap
from matinee.training.parallel.zero import divided_optimizer
from matinee.training.precision import Precision, allow_tf32, pick_precision
from matinee.training.setup import Setup, parts_of, prepare, stages_of, training_loader
from matinee.training.stages import Timeline
from matinee.training.step import StepRunner

WARM = 2
"""Steps before each turn that do not count: after them, decoders are as far ahead as they get."""
_TRACED = 6
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Stand:
    """What arms work with. Made by `open_stand`; a context that ends the loader's workers."""

    config: TrainConfig
    ranks: Ranks
    setup: Setup
    loader: EpochLoader
    runner: StepRunner
    lonely: StepRunner | None
    """Makes a step of this rank alone; None without other ranks, or where that cannot be."""
    half: StepRunner | None
    """Makes a step in bf16; None where it is not fp32 that is used."""
    parts: int
    precision: Precision
    ema: Ema | None = None
    steps: int = 1
    """Of a turn."""

    def __post_init__(self) -> None:
        self._batches = _endless(self.loader)
        self._kept: list[Batch] = []
        self._number = 0

    @property
    def decodes(self) -> bool:
        """Whether anybody does: images lie in memory."""
        return isinstance(self.loader, ClipLoader)

    def whole(self) -> Reading:
        """Training as it is."""
        self._prepare()
        self._train(self.runner, self._batches, WARM)
        return self._read(lambda: self._step(self.runner, self._batches))

    def synthetic(self) -> Reading:
        """On batches that are on the device, while nothing is decoded."""
        return self._on_kept(self.runner)

    def alone(self) -> Reading:
        """The same, without a word to other ranks."""
        assert self.lonely is not None
        return self._on_kept(self.lonely)

    def bf16(self) -> Reading:
        """On batches that are on the device, in bf16."""
        assert self.half is not None
        return self._on_kept(self.half)

    def fetch(self) -> Reading:
        """The loader alone: batches are dropped."""
        self._prepare()
        for _ in range(WARM * self.parts):
            next(self._batches)
        return self._read(self._drop)

    def trace(self, path: str) -> None:
        """Write a timeline of a few steps as training makes them; a collective."""
        trace, spans = Trace(self.ranks.rank), self.runner.spans
        self._prepare()
        with trace.follow(spans, self.loader):
            for number in range(WARM + _TRACED):
                with trace.stretch("step", number=number):
                    self._step(self.runner, self._batches)
            spans.take()
        traces = self.ranks.everyone(trace)
        self.ranks.on_main(lambda: write_trace(path, traces))

    def rest(self) -> None:
        """Let decoders come to an end: nobody works beside whoever measures next. What they did is
        forgotten; a turn's costs are those from here on, with the steps that do not count.
        """
        self.loader.load_state_dict(self.loader.state_dict())
        self.loader.take_costs()

    def _prepare(self) -> None:
        """Before a turn. Products are set for the whole process: by this stand, not another one."""
        allow_tf32(self.config.speed.tf32)
        self.rest()

    def keep_batches(self) -> None:
        """Of one step, for `synthetic`."""
        self._kept = [next(self._batches) for _ in range(self.parts)]

    def _on_kept(self, runner: StepRunner) -> Reading:
        if not self._kept:
            self.keep_batches()
        self._prepare()
        kept = cycle(self._kept)
        self._train(runner, kept, 1)
        return self._read(lambda: self._step(runner, kept))

    def _train(self, runner: StepRunner, batches: Iterator[Batch], steps: int) -> None:
        for _ in range(steps):
            self._step(runner, batches)

    def _step(self, runner: StepRunner, batches: Iterator[Batch]) -> None:
        clips = self.config.optim.batch_size * runner.ranks.world // self.ranks.world
        stepped = runner(batches, clips=clips, number=self._number, lr=0.0)
        if self.ema is not None and not stepped.skipped:
            with runner.spans("optimizer"):
                self.ema.update(self.setup.task.model, self._number)
        self._number += 1

    def _drop(self) -> None:
        for _ in range(self.parts):
            next(self._batches)

    def _read(self, act: Callable[[], None]) -> Reading:
        """Make a turn's steps; ranks begin together."""
        self._sync()
        self.ranks.barrier()
        spans = self.runner.spans
        spans.take()
        idle, begin = _idle_ticks(), time.perf_counter()
        times = _Times(self.ranks.device)
        for _ in range(self.steps):
            act()
            times.mark()
        self._sync()
        spent, rested = time.perf_counter() - begin, _idle_ticks() - idle
        cost = self.loader.take_costs()
        return Reading(times.seconds(), spans.take(), cost, rested / _TICKS / spent)

    def _sync(self) -> None:
        if self.ranks.device.type == "cuda":
            torch.cuda.synchronize(self.ranks.device)

    def __enter__(self) -> Stand:
        return self

    def __exit__(self, *exc: object) -> None:
        self._kept.clear()
        self.loader.close()


def open_stand(config: TrainConfig, ranks: Ranks, pulse: Pulse | None = None) -> Stand:
    """Build a run as `train` does, without a folder.

    With `speed.stages` the clips are those of the last stage.

    Raises:
        ConfigError: settings that contradict each other or the data.
    """
    precision, _ = pick_precision(config.speed.precision, ranks.device)
    allow_tf32(config.speed.tf32)
    parts, stage = parts_of(config, ranks.world), stages_of(config)[-1]
    setup = prepare(config.data.open(), config, ranks)
    with ExitStack() as opened:
        loader = training_loader(setup, stage, parts)
        opened.callback(loader.close)
        Timeline((stage,), loader.num_items)  # refuses fewer clips than a batch
        stand = _built(setup, loader, parts, precision, pulse)
        opened.pop_all()  # from here on the stand closes it
    return stand


def _built(
    setup: Setup, loader: EpochLoader, parts: int, precision: Precision, pulse: Pulse | None
) -> Stand:
    """Put the parts together."""
    config, ranks, task = setup.config, setup.ranks, setup.task
    task.train()
    wrapped = wrap(task, config.parallel, ranks, parts=parts, bf16=precision == "bf16")
    if config.speed.compile != "none":
        compile_model(task.model, config.speed.compile)
    divided = config.parallel.strategy == "zero1" and ranks.world > 1
    make = divided_optimizer if divided else build_optimizer
    optimizer = make(task.model, config.optim, fused=config.speed.fused)
    spans = spans_on(ranks.device, pulse=pulse)

    def runner(wrapped: Wrapped, ranks: Ranks, precision: Precision = precision) -> StepRunner:
        return StepRunner(
            task, optimizer, wrapped, ranks, parts=parts, seed=config.run.seed,
            precision=precision, clip_norm=config.optim.clip_norm,
            clip_value=config.optim.clip_value, spans=spans,
        )  # fmt: skip

    lonely = None
    module: Any = wrapped.compute
    if isinstance(module, DistributedDataParallel) and not divided:  # else they share the update
        # The forward pass still goes through the wrapper, as it does in training.
        silent = Wrapped(module, lambda number: module.no_sync())
        lonely = runner(silent, replace(ranks, world=1))
    half = None
    # A compiled network would be compiled again, FSDP gathers weights in its own precision.
    if (
        precision == "fp32"
        and config.speed.compile == "none"
        and config.parallel.strategy != "fsdp"
    ):
        half = runner(wrapped, ranks, "bf16")
    if isinstance(loader, ClipLoader):
        loader.spans = spans
    ema = None if config.optim.ema is None else Ema(task.model, config.optim.ema)
    return Stand(
        config, ranks, setup, loader, runner(wrapped, ranks), lonely, half, parts, precision, ema
    )


class _Times:
    """Seconds between marks: of the clock, or of a GPU that is not waited for."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[Any] = []
        self.mark()

    def mark(self) -> None:
        if not self._cuda:
            self._marks.append(time.perf_counter())
            return
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append(event)

    def seconds(self) -> tuple[float, ...]:
        """After a synchronisation."""
        pairs = zip(self._marks, islice(self._marks, 1, None), strict=False)
        if self._cuda:
            return tuple(a.elapsed_time(b) / 1000 for a, b in pairs)
        return tuple(b - a for a, b in pairs)


def _endless(loader: EpochLoader) -> Iterator[Batch]:
    """Epoch after epoch."""
    while True:
        yield from loader


def _idle_ticks() -> float:
    """For how long this process's cores had nothing to do, in clock ticks of one core.

    Source: proc(5), /proc/stat: user nice system idle iowait …
    """
    allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return 0.0
    rows = [line.split() for line in lines]
    return float(sum(int(row[4]) + int(row[5]) for row in rows if row and row[0] in allowed))
