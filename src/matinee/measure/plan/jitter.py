"""Ranks are not equally fast, and the slowest sets the pace.

# Note [The slowest of n]
A step ends when its last rank does: its time is the maximum over n ranks of each one's. What is
needed is the expected maximum of n draws, ∫ Q(u) dF(u) with F(u) = uⁿ, which is the mean of
Q(v^(1/n)) over v in (0, 1). Means and deviations tell little about it for large n: the tail does.
So the tail here comes from what is known of it, the slowest of a large machine's GPUs: beyond the
whiskers of the box plot that the spread of the others describes (2.7 deviations), times grow by as
much with each doubling of the number of GPUs, up to that slowest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log
from statistics import NormalDist
from typing import Protocol

import numpy as np

from matinee.errors import ConfigError

_WHISKER = NormalDist().cdf(2.698)  # where a box plot's upper whisker ends
_EULER = 0.5772156649
_POINTS = 4000


class Jitter(Protocol):
    """A distribution of a rank's step time, about 1."""

    def slowest(self, ranks: int) -> float:
        """Expected maximum of `ranks` draws, in means of one: at least 1, growing."""

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Lognormal:
    """Times whose logarithm is normal, with deviation `sigma`."""

    sigma: float

    def slowest(self, ranks: int) -> float:
        return _expected_maximum(self, ranks) / _expected_maximum(self, 1)

    def quantile(self, u: float, left: float) -> float:
        """At `u`; `left` is 1 - u, precise where u is nearly 1."""
        z = NormalDist().inv_cdf(u) if u < 0.5 else -NormalDist().inv_cdf(left)
        return exp(self.sigma * z)

    def __str__(self) -> str:
        return f"lognormal, deviation {self.sigma:g}"


@dataclass(frozen=True)
class Tailed:
    """As `Lognormal` up to the whisker; beyond, up to `worst` medians for the slowest of `of`.

    See Note [The slowest of n].
    """

    sigma: float
    worst: float
    of: float

    def slowest(self, ranks: int) -> float:
        return _expected_maximum(self, ranks) / _expected_maximum(self, 1)

    def quantile(self, u: float, left: float) -> float:
        """At `u`; `left` is 1 - u, precise where u is nearly 1."""
        if u <= _WHISKER:
            return Lognormal(self.sigma).quantile(u, left)
        edge = exp(2.698 * self.sigma)
        doublings = log((1 - _WHISKER) / left)
        whole = log((1 - _WHISKER) * self.of) + _EULER  # the mean place of the slowest of `of`
        return edge + max(0.0, self.worst - edge) * doublings / max(whole, 1.0)

    def __str__(self) -> str:
        return (
            f"deviation {self.sigma:g}, the slowest of {self.of:,.0f} takes {self.worst:g} "
            "times as long"
        )


@dataclass(frozen=True)
class Measured:
    """Step times of ranks as they were measured, in any unit.

    More ranks than samples can't be told what lies beyond the slowest sample: it is the maximum.
    """

    samples: tuple[float, ...]

    @staticmethod
    def of(samples: Sequence[float]) -> Measured:
        """Of at least two positive times.

        Raises:
            ConfigError: fewer, or other values.
        """
        values = tuple(sorted(float(x) for x in samples))
        if len(values) < 2 or not 0 < values[0] <= values[-1] < float("inf"):
            raise ConfigError(f"{len(values)} step times: at least two are needed, all positive")
        return Measured(values)

    def slowest(self, ranks: int) -> float:
        values = np.asarray(self.samples)
        places = np.arange(len(values) + 1) / len(values)
        weight = np.diff(places**ranks)
        return float((values * weight).sum() / values.mean())

    def __str__(self) -> str:
        return (
            f"{len(self.samples)} measured steps, {self.samples[0]:.3g} to {self.samples[-1]:.3g}"
        )


@cache
def _expected_maximum(jitter: Lognormal | Tailed, ranks: int) -> float:
    total = 0.0
    for i in range(_POINTS):
        log_u = log((i + 0.5) / _POINTS) / ranks
        total += jitter.quantile(exp(log_u), -float(np.expm1(log_u)))
    return total / _POINTS
