"""The learning-rate range test: some steps at rising rates, by a network that is then forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from matinee.data.batch import Batch
from matinee.data.epochs import EpochLoader
from matinee.errors import ConfigError
from matinee.models.compile import compile_model
from matinee.training.config import TrainConfig
from matinee.training.optim.build import build_optimizer
from matinee.training.optim.schedule import growth_of_rate
from matinee.training.parallel.environment import RankEnvironment
from matinee.training.parallel.ranks import Ranks, start_ranks
from matinee.training.parallel.wrap import wrap
from matinee.training.precision import allow_tf32, pick_precision
from matinee.training.search.lr_curve import Smoothed, Suggestion, range_rates, suggest
from matinee.training.setup import prepare, training_loader
from matinee.training.stages import Stage, Timeline
from matinee.training.step import StepRunner


@dataclass(frozen=True)
class RangeTest:
    """Losses over rates, as far as the test went.

    `rates` are values of `optim.lr`; the optimizer's own rate is `growth` times as large (see
    `optim.base_batch`). `smoothed` is shorter by one where the last loss is not finite. `diverged`:
    the test ended before its last rate, of `steps`.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    suggestion: Suggestion
    optimizer: str
    batch_size: int
    growth: float
    steps: int
    diverged: bool

    def to_dict(self) -> dict[str, Any]:
        """Strict JSON: a loss that is not finite becomes None."""
        finite = [loss if np.isfinite(loss) else None for loss in self.losses]
        return {**asdict(self), "losses": finite}


def find_lr(
    config: TrainConfig,
    *,
    low: float = 1e-7,
    high: float = 10.0,
    steps: int = 100,
    on_step: Callable[[int, int, float], None] = lambda done, steps, rate: None,
) -> RangeTest:
    """Train a new network for `steps` steps, from `optim.lr` = `low` up to `high`.

    Everything but the rate is as in the config's training: batches in their order, augmentation,
    clipping, decay. Nothing is written. It ends early where the loss is four times the best or not
    finite.

    Args:
        on_step: told after each step how many are done, of how many, and the rate.

    Raises:
        ConfigError: settings that contradict each other or the data, or an empty range.
        ClipError: a clip cannot be read (`data.on_error="raise"`).
    Source: arXiv 1506.01186, §3.3.
    """
    rates = range_rates(low, high, steps)
    if RankEnvironment.read().world > 1:
        raise ConfigError(
            "the range test takes one process, which does the steps of any number of ranks with "
            "--optim.accumulate: start it without torchrun or srun"
        )
    optim = config.optim
    growth = growth_of_rate(optim, optim.batch_size)
    smoothed, losses = Smoothed(steps), list[float]()
    diverged = False
    with start_ranks(config.run.device, config.parallel.timeout_s) as ranks:
        runner, loader = _prepare(config, ranks)
        with loader:
            batches = _endless(loader)
            for number, rate in enumerate(rates.tolist()):
                stepped = runner(batches, clips=optim.batch_size, number=number, lr=rate * growth)
                losses.append(float(stepped.loss) / stepped.clips)
                on_step(number + 1, steps, rate)
                diverged = smoothed.add(losses[-1])
                if diverged:
                    break
    seen = len(smoothed.values)
    suggestion = suggest(rates, np.array(losses[:seen]), np.array(smoothed.values))
    return RangeTest(
        rates=tuple(rates[: len(losses)].tolist()), losses=tuple(losses),
        smoothed=tuple(smoothed.values), suggestion=suggestion, optimizer=optim.name,
        batch_size=optim.batch_size, growth=growth, steps=steps, diverged=diverged,
    )  # fmt: skip


def _prepare(config: TrainConfig, ranks: Ranks) -> tuple[StepRunner, EpochLoader]:
    """What makes the steps, with the whole clips of the last stage, and what they are made of."""
    optim, clip = config.optim, config.clip
    precision, _ = pick_precision(config.speed.precision, ranks.device)
    allow_tf32(config.speed.tf32)
    setup = prepare(config.data.open(), config, ranks)
    stage = Stage(optim.epochs, clip.frames, clip.size, optim.batch_size)
    parts = optim.accumulate * (config.parallel.simulate_world or 1)
    loader = training_loader(setup, stage, parts)
    Timeline((stage,), loader.num_items)  # refuses fewer clips than a batch
    task = setup.task
    task.train()
    wrapped = wrap(task, config.parallel, ranks, parts=parts, bf16=precision == "bf16")
    if config.speed.compile != "none":
        compile_model(task.model, config.speed.compile)
    optimizer = build_optimizer(task.model, optim, fused=config.speed.fused)
    runner = StepRunner(
        task, optimizer, wrapped, ranks, parts=parts, seed=config.run.seed, precision=precision,
        clip_norm=optim.clip_norm, clip_value=optim.clip_value,
    )  # fmt: skip
    return runner, loader


def _endless(loader: EpochLoader) -> Iterator[Batch]:
    """Epoch after epoch."""
    while True:
        yield from loader
