"""One run of an ablation's grid, in a process of its own: its epochs, its memory, its test."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import torch

from matinee.data.epochs import EpochLoader
from matinee.errors import ConfigError, MatineeError
from matinee.evaluation.run import evaluate_task
from matinee.measure.process import held_bytes, peak_bytes, reset_peak, wait
from matinee.models.compile import compile_model
from matinee.training.config import TrainConfig
from matinee.training.optim.build import build_optimizer
from matinee.training.optim.schedule import learning_rate, momentum
from matinee.training.parallel.ranks import start_ranks
from matinee.training.parallel.wrap import wrap
from matinee.training.precision import allow_tf32, autocast, pick_precision
from matinee.training.setup import parts_of, prepare, stages_of, training_loader, validation_loader
from matinee.training.stages import Timeline
from matinee.training.step import StepRunner

OPEN, EPOCH, TEST = "open", "epoch", "test"


class Job:
    """`Job(config as JSON)`, called with OPEN, then EPOCH for each epoch, then TEST.

    Nothing is written: no checkpoints, so that neither their time nor their memory is measured.
    """

    def __init__(self, config: str) -> None:
        self._config = TrainConfig.from_json(config)
        self._stack = ExitStack()
        self._loader: EpochLoader | None = None
        self._done = 0

    def __call__(self, order: str) -> dict[str, Any]:
        return {OPEN: self._open, EPOCH: self._epoch, TEST: self._test}[order]()

    def _open(self) -> dict[str, Any]:
        config = self._config
        self._ranks = self._stack.enter_context(
            start_ranks(config.run.device, config.parallel.timeout_s)
        )
        self._precision, _ = pick_precision(config.speed.precision, self._ranks.device)
        allow_tf32(config.speed.tf32)
        self._parts = parts_of(config, self._ranks.world)
        self._setup = setup = prepare(config.data.open(), config, self._ranks)
        if setup.splits.val is None:
            raise ConfigError(f"{config.data.path}: no val or test split to measure accuracy on")
        self._stage = stages_of(config)[-1]
        self._loader = self._stack.enter_context(training_loader(setup, self._stage, self._parts))
        self._timeline = Timeline((self._stage,), self._loader.num_items)
        task = setup.task
        wrapped = wrap(
            task, config.parallel, self._ranks, parts=self._parts, bf16=self._precision == "bf16"
        )
        if config.speed.compile != "none":
            compile_model(task.model, config.speed.compile)
        self._runner = StepRunner(
            task, build_optimizer(task.model, config.optim, fused=config.speed.fused), wrapped,
            self._ranks, parts=self._parts, seed=config.run.seed, precision=self._precision,
            clip_norm=config.optim.clip_norm, clip_value=config.optim.clip_value,
        )  # fmt: skip
        reset_peak(self._ranks.device)  # what importing and building took is none of the steps'
        self._held = held_bytes(self._ranks.device)
        return {"device": device_name(self._ranks.device), "precision": self._precision}

    def _epoch(self) -> dict[str, Any]:
        assert self._loader is not None
        optim, device = self._config.optim, self._ranks.device
        self._setup.task.train()
        start, end = self._timeline.start(self._done), self._timeline.start(self._done + 1)
        steps = end - start
        batches, clips = iter(self._loader), self._stage.batch_size
        loss, seen = torch.zeros((), device=device), 0
        wait(device)
        begin = time.perf_counter()
        for step in range(start, end):
            done = self._timeline.progress(step)
            stepped = self._runner(
                batches, clips=clips, number=step, lr=learning_rate(optim, done, steps, clips),
                momentum=momentum(optim, done),
            )  # fmt: skip
            loss, seen = loss + stepped.loss, seen + stepped.clips
        wait(device)
        seconds = time.perf_counter() - begin
        self._done += 1
        mean = float(loss) / seen
        if not mean < float("inf"):
            raise MatineeError(f"the loss is not finite in epoch {self._done}: lower optim.lr")
        return {"seconds": seconds, "loss": mean, "clips": seen, "steps": steps}

    def _test(self) -> dict[str, Any]:
        setup, device = self._setup, self._ranks.device
        peak = peak_bytes(device)  # of training: before the test takes its own
        size = max(1, self._stage.batch_size // self._parts)
        with validation_loader(setup, size) as loader:
            found = evaluate_task(
                setup.task, loader, setup.vocabulary, lambda: autocast(self._precision, device)
            )
        assert found is not None
        self._stack.close()
        metrics = {name: found.metrics[name] for name in ("top1", "macro_f1", "samples")}
        return {**metrics, "peak_bytes": peak, "held_bytes": self._held}


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "cpu"
