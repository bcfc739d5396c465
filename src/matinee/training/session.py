"""A run with all its parts: data, task, ranks, optimizer, state, folder, and who is told."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import torch
from torch import Tensor

from matinee.data.batch import Batch
from matinee.data.loader import ClipLoader
from matinee.errors import ConfigError
from matinee.evaluation.run import evaluate_task
from matinee.models.compile import compile_model
from matinee.spans import Spans
from matinee.tasks.config import ContrastiveConfig
from matinee.training.checks import check_finite, check_weights
from matinee.training.config import TrainConfig
from matinee.training.optim.build import build_optimizer
from matinee.training.optim.ema import Ema
from matinee.training.optim.noise import NoiseScale
from matinee.training.optim.schedule import describe
from matinee.training.parallel.ranks import Ranks
from matinee.training.parallel.wrap import wrap
from matinee.training.parallel.zero import divided_optimizer
from matinee.training.precision import allow_tf32, autocast, pick_precision
from matinee.training.resume import begun_here, check_vocabulary, find_state
from matinee.training.setup import (
    Setup,
    parts_of,
    prepare,
    stages_of,
    training_loader,
    validation_loader,
)
from matinee.training.show.loggers import Logger, check_loggers, open_loggers
from matinee.training.show.progress import Progress
from matinee.training.spent import take_spent
from matinee.training.stages import Stage, Timeline
from matinee.training.state.lock import lock_folder
from matinee.training.state.runfolder import RunFolder
from matinee.training.state.train_state import TrainState
from matinee.training.step import Stepped, StepRunner

NOISE_DECAY = 0.99


@dataclass
class Session:
    """What `train` works with. Made by `open_session`."""

    config: TrainConfig
    ranks: Ranks
    setup: Setup
    folder: RunFolder
    timeline: Timeline
    state: TrainState
    runner: StepRunner
    say: Progress
    precision: str
    parts: int
    notes: tuple[str, ...]
    loggers: list[Logger] = field(default_factory=list)
    saved_at: float = field(default_factory=time.perf_counter)
    clips: int = 0
    """Read in this session since the last log line; `state.clips` also counts those before it."""
    steps: int = 0
    """Done in this session since the last log line."""
    norm: Tensor = field(default_factory=lambda: torch.zeros(()))
    """Of the last step's gradient, before its limit."""
    lock: BinaryIO | None = None
    """Of the folder, on rank 0: held as long as it is open."""
    _stage: Stage | None = None

    def batches(self, epoch: int) -> Iterator[Batch]:
        """The rest of an epoch's batches; its stage decides how large clips are."""
        stage = self.timeline.stage(epoch)
        if stage != self._stage:
            if self._stage is not None:
                self.state.loader.close()
                self.state.loader = training_loader(self.setup, stage, self.parts)
                self.state.loader.epoch = epoch
            self._resize(stage)
            self._stage = stage
        if isinstance(self.state.loader, ClipLoader):
            self.state.loader.spans = self.runner.spans
        return iter(self.state.loader)

    def done(self, stepped: Stepped, clips: int) -> None:
        """Count a step, and add it to what the next log line sums up."""
        state = self.state
        loss = stepped.loss if state.loss is None else state.loss + stepped.loss
        state.loss = loss
        for name, value in stepped.sums.items():
            state.sums[name] = state.sums[name] + value if name in state.sums else value
        bad = stepped.loss if self.precision == "fp16" else stepped.loss + stepped.norm
        state.recent[state.step] = (bad, stepped.samples)
        self.norm = stepped.norm
        if state.ema is not None and not stepped.skipped:
            with self.runner.spans("optimizer"):
                state.ema.update(state.model, state.updates)
        state.skipped += stepped.skipped
        state.clips += stepped.clips
        self.clips += stepped.clips
        state.masked += clips - stepped.clips
        state.step += 1
        self.steps += 1

    def log(self, row: dict[str, Any]) -> None:
        """Write a row of metrics and tell it, on rank 0."""
        if not self.ranks.is_main:
            return
        self.folder.log(**row)
        for logger in self.loggers:
            logger.log(row)
        if row["kind"] == "val":
            self.say.validated(row)
        else:
            self.say.log(row)

    def train_row(self, lr: float, seconds: float) -> dict[str, Any]:
        """The log line of the steps since the last one; a collective.

        Raises:
            MatineeError: a loss or gradient was not finite.
        """
        state = self.state
        check_finite(state, self.ranks, self.folder)
        loss, sums = state.total(self.ranks)
        assert loss is not None
        row = {
            "kind": "train",
            "step": state.step,
            "epoch": self.timeline.progress(state.step),
            "loss": float(loss) / state.clips,
            **{name: float(value) / state.clips for name, value in sums.items()},
            "lr": lr,
            "grad_norm": _finite(self.norm),
            "clips": state.clips,
            "clips_per_s": self.clips / max(seconds, 1e-9),
            "masked": state.masked,
            "window": {"steps": self.steps, "seconds": seconds},
            **take_spent(self.runner.spans, state.loader, self.ranks),
        }
        if state.noise is not None:
            row["noise_scale"] = _finite(state.noise.value())
        if self.precision == "fp16":
            row |= {"skipped": state.skipped, "loss_scale": state.scaler.get_scale()}
        if self.ranks.world > 1:
            row["world"] = self.ranks.world
        if self.ranks.device.type == "cuda":
            row["memory_gib"] = torch.cuda.max_memory_allocated(self.ranks.device) / 2**30
        state.loss, state.sums, state.clips, self.clips, self.steps = None, {}, 0, 0, 0
        return row

    def val_row(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """The log line of a validation after the epoch that just ended."""
        best = None
        if self.state.best is not None:
            step, value = self.state.best
            best = {"epoch": self.timeline.progress(step), "value": value}
        return {
            "kind": "val", "step": self.state.step, "epoch": self.state.validated + 1,
            "split": self.setup.splits.val, "views": "1x1", "best": best, **metrics,
            "spans": self.runner.spans.take(),
        }  # fmt: skip

    def save_is_due(self) -> bool:
        """Whether rank 0 has not saved for as long as it may."""
        due = time.perf_counter() - self.saved_at > 60 * self.config.run.save_minutes
        return due and self.ranks.is_main

    def save(self, *, best: bool = False, wait: bool = False) -> None:
        """Save the state; a collective. Rank 0 writes while training goes on.

        Raises:
            MatineeError: a loss or weights are not finite.
        """
        state = self.state
        check_finite(state, self.ranks, self.folder)
        check_weights(state, self.folder)
        begin = time.perf_counter()
        with self.runner.spans("save"):
            content = {
                "state": state.state_dict(self.ranks),
                "vocabulary": self.setup.vocabulary.to_dict(),
                "source_digest": self.setup.pack.meta.get("source_digest"),
            }
            if self.ranks.is_main:
                self.folder.checkpoints.save(content, state.step, best=best, wait=wait)
        self.saved_at = time.perf_counter()
        if self.ranks.is_main:
            self.say.saved(state.step, self.saved_at - begin)

    def validate(self, should_stop: Callable[[], bool]) -> dict[str, Any] | None:
        """Metrics of the validation split, of the averaged weights if there are; a collective.

        None without a split, or when `should_stop`, on which all ranks agree, said so.
        """
        setup, task = self.setup, self.setup.task
        if setup.splits.val is None:
            return None
        last = self.timeline.stages[-1]
        self._resize(last)
        size = max(1, last.batch_size // (self.parts * self.ranks.world))
        check_weights(self.state, self.folder)
        averaged = self.state.averaged()
        with self.runner.spans("validate"), averaged, validation_loader(setup, size) as loader:
            evaluated = evaluate_task(
                task, loader, setup.vocabulary,
                lambda: autocast(self.precision, self.ranks.device), should_stop=should_stop,
            )  # fmt: skip
        if self._stage is not None:
            self._resize(self._stage)
        return None if evaluated is None else evaluated.metrics

    def _resize(self, stage: Stage) -> None:
        """Make the network ready for a stage's clips."""
        if len(self.timeline.stages) > 1:
            self.setup.task.resize(frames=stage.frames, size=stage.size)

    def is_best(self, metrics: dict[str, Any]) -> bool:
        """Whether a validation is the best so far, which is then remembered."""
        task, state = self.setup.task, self.state
        value = float(metrics[task.headline])
        if not math.isfinite(value):
            return False
        better = state.best is None or (
            value < state.best[1] if task.lower_is_better else value > state.best[1]
        )
        if better:
            state.best = (state.step, value)
        return better

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        """End the loader's workers, what is being written, and the loggers."""
        self.state.loader.close()
        if self.ranks.is_main:
            self.folder.checkpoints.__exit__(kind, error, trace)
        for logger in self.loggers:
            logger.close()
        if self.lock is not None:
            self.lock.close()


def _finite(value: Tensor) -> float | None:
    """A number for JSON, which has neither infinity nor NaN."""
    number = float(value)
    return number if math.isfinite(number) else None


def open_session(
    config: TrainConfig, ranks: Ranks, say: Progress, spans: Spans, *, resume: bool | str
) -> Session:
    """Build a run, new or gone on with.

    Args:
        resume: True: there must be a run in `config.run.out`; "auto": go on if there is one.

    Raises:
        ConfigError: settings that contradict each other or the data.
    """
    folder = RunFolder(config.run.out, keep=config.run.keep)
    if resume == "auto":
        resume = ranks.on_main(folder.config_file.exists)
    if ranks.restarted and not resume:
        resume = ranks.on_main(lambda: begun_here(folder))
    precision, reason = pick_precision(config.speed.precision, ranks.device)
    parts, stages = parts_of(config, ranks.world), stages_of(config)
    _check(config, ranks, precision, parts)
    allow_tf32(config.speed.tf32)
    pack = config.data.open()
    # A run that goes on has all its weights in the checkpoint.
    found = find_state(folder, config, pack, ranks) if resume else None
    setup = prepare(pack, config, ranks, new_weights=found is None)
    timeline = Timeline(stages, _items(setup))
    task, optim = setup.task, config.optim
    task.train()
    if len(stages) > 1:
        for stage in stages:  # refuses sizes that the network cannot have; the last is its own
            task.resize(frames=stage.frames, size=stage.size)
    wrapped = wrap(task, config.parallel, ranks, parts=parts, bf16=precision == "bf16")
    if config.speed.compile != "none":
        compile_model(task.model, config.speed.compile)
    divided = config.parallel.strategy == "zero1" and ranks.world > 1
    make = divided_optimizer if divided else build_optimizer
    noise = NoiseScale(NOISE_DECAY) if optim.noise_scale else None
    runner = StepRunner(
        task, make(task.model, optim, fused=config.speed.fused), wrapped, ranks, parts=parts,
        seed=config.run.seed, precision=precision, clip_norm=optim.clip_norm,
        clip_value=optim.clip_value, noise=noise, spans=spans,
    )  # fmt: skip
    stage = timeline.stage(0 if found is None else found.epoch)
    state = TrainState(
        task.model, runner.optimizer, runner.scaler, training_loader(setup, stage, parts),
        None if optim.ema is None else Ema(task.model, optim.ema), noise,
    )  # fmt: skip
    notes = [*_facts(setup, timeline, state, ranks, f"{precision} ({reason})"), wrapped.note]
    if found is not None:
        check_vocabulary(found, setup, folder)
        state.load_state_dict(found.state, ranks)
        notes += [*found.notes, f"goes on after step {state.step} of {timeline.total}"]
    session = Session(
        config, ranks, setup, folder, timeline, state, runner, say, precision, parts,
        tuple(note for note in notes if note),
    )  # fmt: skip
    if ranks.is_main:
        say.start(
            total=timeline.total, headline=task.headline, facts=list(session.notes),
            epochs=timeline.epochs,
        )  # fmt: skip
    ranks.on_main(lambda: _begin(session, resumed=bool(resume)))
    return session


def _begin(session: Session, *, resumed: bool) -> None:
    """On rank 0: make the folder ready, or take back what was written after the checkpoint."""
    folder, state, config = session.folder, session.state, session.config
    if not resumed:  # nothing is written where a run cannot start
        check_loggers(config.run.loggers)
        folder.check_new()
    session.lock = lock_folder(folder.path, session.say.note)
    try:
        session.loggers[:] = open_loggers(
            config.run.loggers, folder.path, config.to_dict(), state.step if resumed else None,
            session.say.note,
        )  # fmt: skip
        _write_first(session, resumed=resumed)
    except BaseException:
        for logger in session.loggers:
            logger.close()
        session.lock.close()
        raise


def _write_first(session: Session, *, resumed: bool) -> None:
    folder, state, config = session.folder, session.state, session.config
    if resumed:
        start = session.timeline.start(state.validated)
        best = None if state.best is None else state.best[0]
        folder.resume(state.step, validated=start == state.step, best=best)
    else:
        folder.create(config)


def _check(config: TrainConfig, ranks: Ranks, precision: str, parts: int) -> None:
    """Refuse settings that do not go together."""
    fsdp = config.parallel.strategy == "fsdp" and ranks.world > 1
    if fsdp and precision == "fp16":
        raise ConfigError("--speed.precision fp16 with --parallel.strategy fsdp: use bf16")
    if config.optim.noise_scale:
        if parts < 2 or not config.parallel.no_sync:
            raise ConfigError(
                "--optim.noise-scale compares gradients of micro-batches: it needs "
                "--optim.accumulate 2 or more (and --parallel.no-sync)"
            )
        if fsdp or isinstance(config.task, ContrastiveConfig):
            raise ConfigError(
                "--optim.noise-scale needs whole gradients that are sums over clips: it is not for "
                "contrastive training, nor for --parallel.strategy fsdp"
            )


def _items(setup: Setup) -> int:
    data = setup.config.data
    return len(setup.pack.select(setup.splits.train)) * data.repeats * data.clips * data.crops


def _facts(
    setup: Setup, timeline: Timeline, state: TrainState, ranks: Ranks, precision: str
) -> list[str]:
    """Sentences on what is trained, and why so."""
    steps, stages = timeline.steps(0), timeline.stages
    about = f"{setup.splits.note}; {timeline.items} clips an epoch, {steps} steps"
    for stage in stages[:-1]:
        about += f"; until epoch {stage.until} clips of {stage.frames}x{stage.size}"
        about += f" in batches of {stage.batch_size}"
    world = setup.config.parallel.simulate_world
    simulated = f"; the steps of {world} ranks, one micro-batch after the other" if world else ""
    return [
        about, *setup.notes, describe(setup.config.optim) + simulated,
        f"{ranks.device}, {precision}; {state.loader.explain()}",
    ]  # fmt: skip
