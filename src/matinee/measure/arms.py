"""Measuring several things against each other on a machine that is not quiet.

# Note [Interleaving]
A noisy machine is slower for seconds at a time. Arms that are measured one after the other meet
different seconds, so a difference between them may be the machine's. Here arms take turns, in an
order that rotates each round, so that a slow stretch meets all of them; ratios are taken within a
round, and what is told are medians with quartiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from matinee.errors import ConfigError


@dataclass(frozen=True)
class Spread:
    """The median of `count` values, and their quartiles `low` and `high`."""

    median: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Of at least one value."""
        low, median, high = (float(q) for q in np.percentile(values, (25, 50, 75)))
        return Spread(median, low, high, len(values))

    def to_dict(self) -> dict[str, float]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g}–{self.high:.3g})"


@dataclass(frozen=True)
class Turns:
    """What arms measured, `values[arm][round]`: seconds, bytes, whatever they return."""

    values: dict[str, list[float]]

    def spread(self, arm: str) -> Spread:
        return Spread.of(self.values[arm])

    def ratio(self, over: str, under: str) -> Spread:
        """`over` divided by `under`, round by round."""
        pairs = zip(self.values[over], self.values[under], strict=True)
        return Spread.of([a / b for a, b in pairs])


def take_turns(
    arms: Mapping[str, Callable[[], float]],
    rounds: int,
    *,
    warm_up: int = 1,
    on_turn: Callable[[int, int], None] | None = None,
) -> Turns:
    """Let each arm measure itself once a round. See Note [Interleaving].

    Args:
        arms: each returns what it measured.
        warm_up: rounds before, which do not count.
        on_turn: told after each turn how many are done, and of how many.

    Raises:
        ConfigError: no arms, or no rounds.
    """
    if not arms or rounds < 1:
        raise ConfigError(f"{len(arms)} arms, {rounds} rounds: at least 1 of each")
    names = list(arms)
    values: dict[str, list[float]] = {name: [] for name in names}
    total, done = (warm_up + rounds) * len(names), 0
    for turn in range(-warm_up, rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            value = arms[name]()
            if turn >= 0:
                values[name].append(value)
            done += 1
            if on_turn is not None:
                on_turn(done, total)
    return Turns(values)
