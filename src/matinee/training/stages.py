"""The epochs of a run: how many steps each has, and how large its clips and batches are."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from matinee.errors import ConfigError

_FORM = re.compile(r"(?P<part>[0-9.]+)=(?P<frames>\d+)x(?P<size>\d+)(?:@(?P<batch>\d+))?")


@dataclass(frozen=True)
class Stage:
    """Clips of `frames` frames of `size` pixels in batches of `batch_size`, up to an epoch."""

    until: int
    frames: int
    size: int
    batch_size: int


def plan_stages(
    texts: Sequence[str], *, epochs: int, frames: int, size: int, batch_size: int
) -> tuple[Stage, ...]:
    """Stages as `SpeedConfig.stages` writes them, and the last one with the whole clips.

    Args:
        epochs, frames, size, batch_size: of the whole run, its clips and its global batch.

    Raises:
        ConfigError: a stage that cannot be read, or stages that do not follow each other.
    Source: multigrid's long cycle, arXiv 1912.00998, §3.
    """
    stages: list[Stage] = []
    for text in texts:
        match = _FORM.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"--speed.stages {text!r}: expected PART=FRAMESxSIZE[@BATCH], such as 0.5=4x112@64"
            )
        batch = int(match["batch"]) if match["batch"] else batch_size
        stage = Stage(
            round(_part(text, match["part"]) * epochs), int(match["frames"]), int(match["size"]),
            batch,
        )  # fmt: skip
        if min(stage.frames, stage.batch_size) < 1 or stage.size < 16 or stage.size % 2:
            raise ConfigError(
                f"--speed.stages {text!r}: at least 1 frame and 1 clip a batch, and an even size "
                "of 16 pixels or more"
            )
        before = stages[-1].until if stages else 0
        if not before < stage.until < epochs:
            raise ConfigError(
                f"--speed.stages {text!r} ends with epoch {stage.until}: it must end after epoch "
                f"{before} and before the last, {epochs}"
            )
        stages.append(stage)
    return (*stages, Stage(epochs, frames, size, batch_size))


def _part(text: str, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise ConfigError(f"--speed.stages {text!r}: {number!r} is no part of the epochs") from None


@dataclass(frozen=True)
class Timeline:
    """Steps and epochs of a run of `items` clips an epoch; an incomplete last batch is dropped."""

    stages: tuple[Stage, ...]
    items: int

    def __post_init__(self) -> None:
        for stage in self.stages:
            if self.items < stage.batch_size:
                raise ConfigError(
                    f"{self.items} clips an epoch, fewer than one batch of {stage.batch_size}: use "
                    "a smaller batch or more repeats"
                )

    @property
    def epochs(self) -> int:
        """Of the whole run."""
        return self.stages[-1].until

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return self._starts[-1]

    def stage(self, epoch: int) -> Stage:
        """The stage that an epoch (from 0) belongs to; after the end the last one."""
        return next((s for s in self.stages if epoch < s.until), self.stages[-1])

    def steps(self, epoch: int) -> int:
        """Of one epoch."""
        return self.items // self.stage(epoch).batch_size

    def start(self, epoch: int) -> int:
        """How many steps come before an epoch."""
        return self._starts[epoch]

    def epoch(self, step: int) -> int:
        """The epoch (from 0) that step number `step` (from 0) belongs to."""
        return bisect_right(self._starts, step) - 1

    def progress(self, step: int) -> float:
        """Epochs done after `step` steps; 3.25 is a quarter of the fourth."""
        epoch = self.epoch(step)
        if epoch == self.epochs:
            return float(epoch)
        return epoch + (step - self._starts[epoch]) / self.steps(epoch)

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        for epoch in range(self.epochs):
            starts.append(starts[-1] + self.steps(epoch))
        return starts
