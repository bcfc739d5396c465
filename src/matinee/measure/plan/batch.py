"""The largest micro-batch that a device holds, and how it reaches the global batch.

# Note [Few evaluations]
Memory grows with the micro-batch: what an operation keeps is proportional to it, and the fullest
moment is the largest of several such sums, so total bytes are a convex line of clips, almost always
a straight one. Two small micro-batches give its slope, and a third prediction checks the largest
that the slope lets fit: where the line bends, it bends upwards, so that nothing larger can. Only
micro-batches that divide a rank's share are candidates. The whole share at once is predicted by
itself, for with one part a step gradients do not outlive it and ranks keep no second copy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from matinee.errors import ConfigError
from matinee.measure.plan.fake import Device
from matinee.measure.plan.memory import Memory, predict_memory
from matinee.tasks.config import ContrastiveConfig
from matinee.training.config import TrainConfig
from matinee.training.precision import Precision
from matinee.training.setup import micro_batch as cut_batch
from matinee.training.setup import stages_of

Strategy = Literal["ddp", "zero1", "fsdp"]
STRATEGIES: tuple[Strategy, ...] = ("ddp", "zero1", "fsdp")
"""By how much they leave on each rank, most first; each exchanges more than the one before."""
LEVELS = (0, 2, 1)
"""Of `speed.recompute`, by how much is computed anew."""
_RECOMPUTED = {
    0: "",
    2: ", every second block computed anew",
    1: ", every block computed anew",
}


@dataclass(frozen=True)
class BatchPlan:
    """How a global batch passes through the memory of each rank.

    `micro_batch` clips at a time, `parts` times a step on each rank (`optim.accumulate`), every
    `recompute`-th block computed anew in the backward pass (0: none), under `strategy`. `memory`
    is that of a rank; `anew` is how many forward passes a step computes beyond one (a step without
    any costs about three: one forwards, two backwards). `reason` is a sentence.
    """

    micro_batch: int
    parts: int
    recompute: int
    strategy: Strategy
    memory: Memory
    anew: float
    reason: str

    def apply(self, config: TrainConfig) -> TrainConfig:
        """The config with this plan."""
        return replace(
            config,
            optim=replace(config.optim, accumulate=self.parts),
            speed=replace(config.speed, recompute=self.recompute),
            parallel=replace(config.parallel, strategy=self.strategy),
        )


def fit_batch(
    config: TrainConfig,
    memory_bytes: int,
    world: int = 1,
    *,
    device: Device = "cuda",
    precision: Precision = "bf16",
    classes: int = 400,
    least: int = 1,
    on_try: Callable[[str], None] | None = None,
) -> BatchPlan:
    """The plan that computes least anew among those that fit; of these, the largest micro-batch.

    Accumulation costs nothing but for contrastive training, which embeds several parts twice.
    Recomputing every block costs a forward pass, every second one half of it. The strategy is the
    config's, unless not even one clip fits under it. See Note [Few evaluations].

    Args:
        memory_bytes: of a device.
        least: clips below which a micro-batch is thought too small to use the device, so that
            blocks are rather computed anew.
        on_try: told what is being predicted.

    Raises:
        ConfigError: nothing fits, or the ranks cannot share the batch.
    """
    _check(config, memory_bytes, world, least)
    asked = config.parallel.strategy
    strategies = STRATEGIES[STRATEGIES.index(asked) :] if world > 1 else (asked,)
    smallest: tuple[int, int, Strategy] | None = None
    for strategy in strategies:
        if strategy == "fsdp" and world > 1 and precision == "fp16":
            continue  # which training refuses
        tried = _Tried(
            replace(config, parallel=replace(config.parallel, strategy=strategy)), memory_bytes,
            world, device, precision, classes, on_try,
        )  # fmt: skip
        found = tried.best(least)
        if found is not None:
            return found
        if smallest is None or tried.smallest < smallest[:2]:
            smallest = *tried.smallest, strategy
    assert smallest is not None
    total, level, strategy = smallest
    raise ConfigError(
        f"{_gib(memory_bytes)} do not hold a step of this network: the smallest micro-batch takes "
        f"{_gib(total)}{_RECOMPUTED[level]}"
        f"{f' with {strategy} on {world} ranks' if world > 1 else ''}: take a device with more "
        f"memory, {'' if strategy == 'fsdp' and world > 1 else 'ranks with fsdp, '}smaller clips "
        "(--clip.frames, --clip.size) or a smaller network"
    )


class _Tried:
    """Micro-batches and levels of recomputing tried under one strategy."""

    def __init__(
        self,
        config: TrainConfig,
        limit: int,
        world: int,
        device: Device,
        precision: Precision,
        classes: int,
        on_try: Callable[[str], None] | None,
    ) -> None:
        self._config, self._limit, self._world = config, limit, world
        self._device, self._precision, self._classes = device, precision, classes
        self._on_try = on_try
        self._share = config.optim.batch_size // world
        self._known: dict[tuple[int, int], Memory] = {}
        self.candidates = [
            clips for clips in range(1, self._share + 1)
            if self._share % clips == 0 and self._can_be_cut(self._share // clips)
        ]  # fmt: skip
        if not self.candidates:
            cut_batch(config, world, stages_of(config)[-1], 1)  # says why

    @property
    def smallest(self) -> tuple[int, int]:
        """Bytes of what took least, and its level of recomputing."""
        return min((memory.total, level) for (level, _), memory in self._known.items())

    def best(self, least: int) -> BatchPlan | None:
        """The plan, or None if nothing fits."""
        plans: list[BatchPlan] = []
        for level in LEVELS:
            try:
                micro = self._largest(level)
            except ConfigError:
                if level == 0:
                    raise
                continue  # a network without blocks that are known
            if micro is None:
                continue
            plan = self._plan(micro, level)
            plans.append(plan)
            if plan.anew == 0 and (plan.parts == 1 or micro >= least):
                break
        enough = [plan for plan in plans if plan.micro_batch >= least] or plans
        return min(enough, key=lambda plan: (plan.anew, -plan.micro_batch), default=None)

    def _plan(self, micro: int, level: int) -> BatchPlan:
        memory, parts = self._known[level, micro], self._share // micro
        twice = isinstance(self._config.task, ContrastiveConfig) and parts > 1
        anew = twice + (1 / level if level else 0)
        total = f"{_gib(memory.total)} of {_gib(self._limit)}"
        how = f"{micro} clips at a time take {total}"
        how += ", the whole batch at once" if parts == 1 else f", {parts} times a step"
        if twice:
            how += " (features are computed twice)"
        how += _RECOMPUTED[level]
        larger = [clips for clips in self.candidates if clips > micro]
        if larger and (level, larger[0]) in self._known:
            how += f"; {larger[0]} would take {_gib(self._known[level, larger[0]].total)}"
        return BatchPlan(micro, parts, level, self._config.parallel.strategy, memory, anew, how)

    def _largest(self, level: int) -> int | None:
        """The largest candidate that fits, None if none does. See Note [Few evaluations]."""
        clips, limit = self.candidates, self._limit
        if self._total(level, clips[0]) > limit:
            # With one part a step gradients do not outlive it: the whole share may take less.
            alone = len(clips) > 1 and self._total(level, clips[-1]) <= limit
            return clips[-1] if alone else None
        if len(clips) == 1:
            return clips[0]
        before, fits, too_many = 0, 1, len(clips) - 1  # places among the candidates
        rise = self._slope(level, before, fits)
        if rise * clips[-1] <= limit and self._total(level, clips[-1]) <= limit:
            return clips[-1]
        if self._total(level, clips[fits]) > limit:
            return clips[before]
        while True:
            rise = self._slope(level, before, fits)
            room = limit - self._total(level, clips[fits])
            reach = clips[fits] + room / rise if rise > 0 else clips[-1]
            guess = min(bisect_right(clips, reach), too_many) - 1
            if guess <= fits:
                return clips[fits]
            if self._total(level, clips[guess]) <= limit:
                before, fits = fits, guess
            else:
                too_many = guess

    def _slope(self, level: int, before: int, after: int) -> float:
        """Bytes a clip between two candidates."""
        a, b = self.candidates[before], self.candidates[after]
        return (self._total(level, b) - self._total(level, a)) / (b - a)

    def _total(self, level: int, micro: int) -> int:
        """Bytes of the stage of the run that takes most."""
        key = level, micro
        if key not in self._known:
            if self._on_try is not None:
                blocks = f", every {level}. block recomputed" if level else ""
                self._on_try(f"{micro} clips at a time{blocks}")
            self._known[key] = self._predict(level, micro)
        return self._known[key].total

    def _predict(self, level: int, micro: int) -> Memory:
        config, parts = self._config, self._share // micro
        config = replace(config, speed=replace(config.speed, recompute=level))
        stages = [
            predict_memory(
                replace(
                    config,
                    clip=replace(config.clip, frames=stage.frames, size=stage.size),
                    optim=replace(config.optim, batch_size=stage.batch_size, accumulate=1),
                ),
                micro_batch=cut_batch(config, self._world, stage, parts), world=self._world,
                device=self._device, precision=self._precision, classes=self._classes,
            )
            for stage in stages_of(config)
        ]  # fmt: skip
        return max(stages, key=lambda memory: memory.total)

    def _can_be_cut(self, parts: int) -> bool:
        try:
            for stage in stages_of(self._config):
                cut_batch(self._config, self._world, stage, parts)
        except ConfigError:
            return False
        return True


def _check(config: TrainConfig, memory_bytes: int, world: int, least: int) -> None:
    if memory_bytes < 1 or world < 1 or least < 1:
        raise ConfigError(
            f"a batch for {world} ranks of {memory_bytes} bytes, with {least} clips or more at a "
            "time: each at least 1"
        )
    if config.parallel.simulate_world is not None:
        raise ConfigError(
            f"--parallel.simulate-world {config.parallel.simulate_world} fixes the micro-batch: "
            "leave it out to have one chosen"
        )
    if config.optim.batch_size % world:
        raise ConfigError(
            f"--optim.batch-size {config.optim.batch_size} cannot be shared by {world} ranks: "
            "choose a multiple"
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
