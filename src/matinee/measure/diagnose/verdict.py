"""Which stage holds a step up, how surely, and what a diagnosis holds.

# Note [Stages]
A stage is what a step would save if it were free:

- `storage`: waiting until bytes of clips have been read;
- `decode`: waiting until they have been decoded, cropped and handed over; on a CPU that trains also
  what decoders take from its cores;
- `h2d`: taking batches to the device (on a CPU: making floats of them in the training process);
- `compute`: forward and backward pass;
- `communication`: what ranks send each other and is not hidden behind the backward pass;
- `optimizer`: limit of the gradient and update;
- `stragglers`: what the slowest rank takes longer for its own work than the median rank;
- `other`: the rest, such as Python between these;
- `data`: storage, decode and h2d together, where they cannot be told apart.

They add up to the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.errors import ConfigError
from matinee.measure.diagnose.changes import Change

Stages = dict[str, float]
"""Seconds of a step by stage; of one round they may be below 0, where arms differ by noise."""

STAGES = ("storage", "decode", "h2d", "data", "compute", "communication", "optimizer", "stragglers",
          "other")  # fmt: skip
CERTAIN = 0.9
"""Certainty from which one stage is named; below, two."""
_ENOUGH = 4  # rounds, of which that certainty can come
_DRAWS = 2000


@dataclass(frozen=True)
class Verdict:
    """The greatest stage.

    `share` of the step it takes; `certainty`: how probably it is the greatest (0 to 1);
    `runner_up`: the next one (None: no other takes time) with its share; `margin`: seconds a step
    by which it exceeds the next one, with the interval `margin_low` … `margin_high` that holds nine
    of ten draws.
    """

    stage: str
    share: float
    certainty: float
    runner_up: str | None
    runner_up_share: float
    margin: float
    margin_low: float
    margin_high: float
    rounds: int

    @property
    def is_certain(self) -> bool:
        return self.certainty >= CERTAIN

    def __str__(self) -> str:
        """One sentence."""
        share = f"{self.share:.0%} of the step"
        if self.runner_up is None:
            return f"{self.stage}: {share}; nothing else takes time"
        if self.margin_low > 0 and self.rounds < _ENOUGH:
            return (
                f"{self.stage}: {share} as far as {self.rounds} "
                f"{'round' if self.rounds == 1 else 'rounds'} can tell; next {self.runner_up} with "
                f"{self.runner_up_share:.0%}"
            )
        if self.is_certain:
            return (
                f"{self.stage}: {share}, certainty {self.certainty:.0%}; next {self.runner_up} "
                f"with {self.runner_up_share:.0%}"
            )
        return (
            f"between {self.stage} ({self.share:.0%} of the step) and {self.runner_up} "
            f"({self.runner_up_share:.0%}): the first is greater with a certainty of "
            f"{self.certainty:.0%}"
        )


def typical(samples: Sequence[Stages]) -> Stages:
    """The median of each stage over rounds, never below 0, scaled to add up to the median step.

    Raises:
        ConfigError: no rounds, or an unknown stage.
    """
    names, values = _matrix(samples)
    return dict(zip(names, _typical(values[None])[0].tolist(), strict=True))


def _typical(rounds: NDArray[np.float64]) -> NDArray[np.float64]:
    """As `typical`, of several sets of rounds: [sets, rounds, stages] → [sets, stages]."""
    medians = np.maximum(np.median(rounds, axis=1), 0)
    step = np.median(rounds.sum(axis=2), axis=1)
    total = medians.sum(axis=1)
    known = (total > 0) & (step > 0)
    scale = np.where(known, step / np.where(known, total, 1), 1.0)
    return np.asarray(medians * scale[:, None])


def decide(samples: Sequence[Stages], *, seed: int = 0) -> Verdict:
    """The verdict on rounds of one step's stages (or rows of a log).

    Certainty is how often a stage is the greatest among medians over rounds drawn with replacement
    (bootstrap). Draws from few rounds repeat each other, so that it is at most 1 − 2⁻ⁿ for n
    rounds: of two equal stages one is ahead in all n about so often.

    Raises:
        ConfigError: no rounds, or an unknown stage.
    """
    names, values = _matrix(samples)
    shown = typical(samples)
    order = sorted(names, key=lambda name: shown[name], reverse=True)
    first, second = order[0], order[1] if len(order) > 1 else None
    step = sum(shown.values()) or 1.0
    draws = np.random.default_rng(seed).integers(len(values), size=(_DRAWS, len(values)))
    medians = _typical(values[draws])  # [draws, stages]
    wins = np.mean(medians.argmax(axis=1) == names.index(first))
    certainty = min(float(wins), 1 - 0.5 ** len(values))
    if second is None or shown[second] <= 0:
        ahead = shown[first]
        return Verdict(first, ahead / step, certainty, None, 0.0, ahead, ahead, ahead, len(values))
    margins = medians[:, names.index(first)] - medians[:, names.index(second)]
    low, high = (float(q) for q in np.percentile(margins, (5, 95)))
    return Verdict(
        first, shown[first] / step, certainty, second, shown[second] / step,
        shown[first] - shown[second], low, high, len(values),
    )  # fmt: skip


def _matrix(samples: Sequence[Stages]) -> tuple[list[str], NDArray[np.float64]]:
    """Stages in order, and their seconds, float64 [rounds, stages]."""
    if not samples:
        raise ConfigError("no round was measured, so there is nothing to decide")
    unknown = {name for sample in samples for name in sample} - set(STAGES)
    if unknown:
        raise ConfigError(f"no stage {min(unknown)!r}; there are: {', '.join(STAGES)}")
    names = [name for name in STAGES if any(name in sample for sample in samples)]
    if not names:
        raise ConfigError("rounds without any stage: there is nothing to decide")
    values = np.array([[s.get(name, 0.0) for name in names] for s in samples], dtype=np.float64)
    if not np.isfinite(values).all():
        raise ConfigError("a stage's seconds are not finite")
    return names, values


@dataclass(frozen=True)
class StepTimes:
    """Of `count` steps: seconds, of `clips` clips on all ranks together."""

    p50: float
    p99: float
    count: int
    clips: int

    @staticmethod
    def of(seconds: Sequence[float], clips: int) -> StepTimes:
        """Of at least one step."""
        p50, p99 = (float(q) for q in np.percentile(seconds, (50, 99)))
        return StepTimes(p50, p99, len(seconds), clips)

    @property
    def clips_per_s(self) -> float:
        return self.clips / self.p50 if self.p50 > 0 else 0.0


@dataclass(frozen=True)
class Diagnosis:
    """What was found.

    `what` was measured ("tsm on my.pack", a run's folder); `samples` are its rounds, of which
    `stages` is the typical one (seconds a step); `changes` are ranked, `notes` say what could not
    be measured or shared cores; `details` are further figures by name, as JSON can hold them.
    """

    what: str
    step: StepTimes
    samples: tuple[Stages, ...]
    stages: Stages
    verdict: Verdict
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(
        what: str,
        step: StepTimes,
        samples: Sequence[Stages],
        *,
        changes: Sequence[Change] = (),
        notes: Sequence[str] = (),
        details: dict[str, Any] | None = None,
    ) -> Diagnosis:
        """Decide on rounds.

        Raises:
            ConfigError: no rounds, or an unknown stage.
        """
        return Diagnosis(
            what, step, tuple(samples), typical(samples), decide(samples), tuple(changes),
            tuple(notes), details or {},
        )  # fmt: skip

    def __str__(self) -> str:
        """Stages, verdict, changes and notes, over several lines."""
        from matinee.measure.diagnose.text import as_text  # here: it knows this class

        return as_text(self)

    def to_dict(self) -> dict[str, Any]:
        """As strict JSON can hold it."""
        return {
            "what": self.what,
            "step": {**asdict(self.step), "clips_per_s": self.step.clips_per_s},
            "stages": dict(self.stages),
            "verdict": {**asdict(self.verdict), "certain": self.verdict.is_certain,
                        "text": str(self.verdict)},
            "changes": [change.to_dict() for change in self.changes],
            "notes": list(self.notes),
            "rounds": [dict(sample) for sample in self.samples],
            **self.details,
        }  # fmt: skip
