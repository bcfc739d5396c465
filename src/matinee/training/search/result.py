"""What a search found, as plain values: study.json, tables and pages are made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from matinee.training.search.dimensions import Dimension

State = Literal["complete", "pruned", "failed", "running", "waiting"]


@dataclass(frozen=True)
class TrialResult:
    """One trial.

    `values` are its settings by field; `curve` holds (epoch, metric) of its validations; `value` is
    the last of a complete trial's; `reason` says why it was pruned or failed; `baseline`: the
    recipe's own settings. `run` is the name of its folder, `seconds` how long it trained.
    """

    number: int
    state: State
    values: dict[str, Any]
    value: float | None = None
    curve: tuple[tuple[int, float], ...] = ()
    reason: str = ""
    baseline: bool = False
    run: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class StudyResult:
    """A search so far.

    `metric` is what `direction` says to make large or small; `own` are the recipe's own settings of
    the fields searched; `importance`, by name of dimension, sums to 1 and is empty with too few
    trials; `command` trains the best trial's settings.
    """

    title: str
    metric: str
    direction: Literal["maximize", "minimize"]
    epochs: int
    space: tuple[Dimension, ...]
    trials: tuple[TrialResult, ...]
    own: dict[str, Any] = field(default_factory=dict)
    importance: dict[str, float] = field(default_factory=dict)
    command: str = ""

    @property
    def complete(self) -> list[TrialResult]:
        return [trial for trial in self.trials if trial.state == "complete"]

    @property
    def best(self) -> TrialResult | None:
        """The first of the best, None before any is complete."""
        return best_of(self.complete, self.direction)

    @property
    def at_edge(self) -> list[Dimension]:
        """Ranges of which the best trial has an end, or is within a twentieth of it."""
        best = self.best
        return [
            dimension
            for dimension in self.space
            if best is not None
            and dimension.drawn(best.values)
            and not 0.05 < dimension.part(best.values[dimension.field]) < 0.95
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; the space as --search takes it, with reasons by name."""
        best = self.best
        plain = {
            "best": best.number if best else None,
            "space": [dimension.text for dimension in self.space],
            "why": {dimension.name: dimension.why for dimension in self.space if dimension.why},
        }
        return {**asdict(self), **plain}


def best_of(trials: Sequence[TrialResult], direction: str) -> TrialResult | None:
    scored = [trial for trial in trials if trial.value is not None]
    if not scored:
        return None
    sign = 1 if direction == "maximize" else -1
    return max(scored, key=lambda t: (sign * (t.value or 0.0), -t.number))
