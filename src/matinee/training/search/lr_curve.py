"""The learning-rate range test as pure functions: rates, smoothing, when to stop, what to take.

Source: Smith, Cyclical Learning Rates, arXiv 1506.01186, §3.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matinee.errors import ConfigError

_DIVERGED = 4.0  # times the best loss so far
_AVERAGED = 20  # the loss is averaged over about 1/20 of the range
_CLEAR = 4.0  # standard deviations that a fall must exceed


def range_rates(low: float, high: float, steps: int) -> NDArray[np.float64]:
    """`steps` rates from `low` to `high`, each the same multiple of the one before, [N].

    Raises:
        ConfigError: an empty range, or too few steps to see a curve.
    """
    if not 0 < low < high < math.inf:
        raise ConfigError(f"--from {low:g} --to {high:g}: needs 0 < from < to")
    if steps < _AVERAGED:
        raise ConfigError(f"--steps {steps}: at least {_AVERAGED}, to see a curve")
    return np.geomspace(low, high, steps)


class Smoothed:
    """Exponential moving average of losses, divided by the weight it has gathered so far (the bias
    correction of Adam, arXiv 1412.6980, §3), and the stopping rule of the test.
    """

    def __init__(self, steps: int) -> None:
        self.keep = 1 - _AVERAGED / steps
        self.values: list[float] = []
        self._mean, self._best = 0.0, math.inf

    def add(self, loss: float) -> bool:
        """Take the next step's loss; whether the test has seen enough: the loss is not finite (it
        is then left out) or four times the best.
        """
        if not math.isfinite(loss):
            return True
        self._mean = self.keep * self._mean + (1 - self.keep) * loss
        self.values.append(self._mean / (1 - self.keep ** (len(self.values) + 1)))
        self._best = min(self._best, self.values[-1])
        return self.values[-1] > _DIVERGED * self._best


@dataclass(frozen=True)
class Suggestion:
    """Rates that a range test speaks for, None without a clear fall.

    `minimum` is where the smoothed loss is lowest, `tenth` a tenth of it, `steepest` where the loss
    falls fastest in log10 of the rate. `lr` is the one to take; `reason` says why, or why none.
    """

    lr: float | None
    steepest: float | None
    tenth: float | None
    minimum: float | None
    reason: str


def suggest(
    rates: NDArray[np.float64], losses: NDArray[np.float64], smoothed: NDArray[np.float64]
) -> Suggestion:
    """What to take, from the losses [M] of the first M of all `rates`.

    Where the loss falls fastest a step pays most, and at its minimum it already stops falling, so a
    tenth of that is the usual distance from the edge. Both are read off one noisy curve, by other
    parts of it: their geometric mean is steadier than either.
    """
    found, few = len(losses), max(3, len(rates) // 10)
    if found <= few:
        return Suggestion(None, None, None, None, "the loss diverged at once: lower --from")
    # The first averages are over few losses, and no place for a minimum.
    lowest = few + int(smoothed[few:].argmin())
    start, noise = _start(losses, few, len(rates))
    if start - smoothed[lowest] <= _CLEAR * noise:
        reason = "the loss never clearly fell: raise --to if it was flat, --steps if it was noisy"
        return Suggestion(None, None, None, None, reason)
    steepest, minimum = float(rates[_steepest(smoothed[: lowest + 1], few)]), float(rates[lowest])
    tenth = minimum / 10
    lr = math.sqrt(steepest * tenth)
    if lowest == len(rates) - 1:
        reason = f"the loss still falls at the highest rate, {minimum:.2g}: raise --to"
    else:
        reason = (
            f"between steepest descent ({steepest:.2g}) and a tenth of the minimum ({tenth:.2g})"
        )
    return Suggestion(lr, steepest, tenth, minimum, reason)


def _steepest(smoothed: NDArray[np.float64], few: int) -> int:
    """Where the loss falls most over `few` steps; rates are evenly spaced in the logarithm."""
    falls = smoothed[:-few] - smoothed[few:]
    return int(falls.argmax()) + few // 2


def _start(losses: NDArray[np.float64], few: int, steps: int) -> tuple[float, float]:
    """Loss before the rate is large enough to change it, and the deviation of a smoothed loss from
    that, if nothing changed.

    The deviation of single losses is told from differences of neighbours, which a trend hardly
    touches. Of independent values, a moving average has (1 - keep) / (1 + keep) of the variance,
    and a mean of n has 1 / n.
    """
    keep = 1 - _AVERAGED / steps
    single = float(np.diff(losses[: max(few, steps // 4)]).std(ddof=1)) / math.sqrt(2)
    return float(losses[:few].mean()), single * math.sqrt((1 - keep) / (1 + keep) + 1 / few)
