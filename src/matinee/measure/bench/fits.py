"""Fitting what was measured: how a quantity grows, and what a message costs. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from matinee.errors import ConfigError


@dataclass(frozen=True)
class Growth:
    """y grows as x to the power of an exponent.

    `last` is the slope between the last two points of log y over log x, where what does not depend
    on x weighs least; `fit` the least-squares slope over all points.
    """

    last: float
    fit: float


def growth(x: Sequence[float], y: Sequence[float]) -> Growth:
    """Exponents of at least two points with rising x.

    Raises:
        ConfigError: fewer points, or values that have no logarithm.
    """
    if len(x) < 2 or len(x) != len(y) or min(*x, *y) <= 0:
        raise ConfigError(
            f"an exponent needs two points or more of positive numbers: {list(x)}, {list(y)}"
        )
    log_x, log_y = np.log(x), np.log(y)
    slope = np.polyfit(log_x, log_y, 1)[0]
    last = (log_y[-1] - log_y[-2]) / (log_x[-1] - log_x[-2])
    return Growth(float(last), float(slope))


@dataclass(frozen=True)
class MessageCost:
    """A message of n bytes takes `start_s` + n * `per_byte_s`; `error` is the median, `worst` the
    largest deviation of the points from that, as a part of what was measured.
    """

    start_s: float
    per_byte_s: float
    error: float
    worst: float

    def seconds(self, num_bytes: float) -> float:
        return self.start_s + num_bytes * self.per_byte_s


def fit_messages(num_bytes: Sequence[float], seconds: Sequence[float]) -> MessageCost:
    """Least squares of the relative deviations, so that small messages count as much as large ones.

    Neither term becomes negative: one that would is 0, and the other fitted alone.

    Raises:
        ConfigError: fewer than two sizes, or times that are not positive.
    """
    if len(set(num_bytes)) < 2 or min(seconds) <= 0:
        raise ConfigError(
            f"latency and bandwidth need two sizes or more, and positive times: {list(num_bytes)} "
            f"bytes in {list(seconds)} s"
        )
    size, time = np.asarray(num_bytes, float), np.asarray(seconds, float)
    columns, ones = np.stack([1 / time, size / time], axis=1), np.ones(len(time))
    start, slope = np.linalg.lstsq(columns, ones, rcond=None)[0]
    if start < 0 or slope < 0:
        alone = [float(c @ ones / (c @ c)) for c in columns.T]
        off = [float(((c * k - 1) ** 2).sum()) for c, k in zip(columns.T, alone, strict=True)]
        start, slope = (alone[0], 0.0) if off[0] < off[1] else (0.0, alone[1])
    away = np.abs((start + slope * size) / time - 1)
    return MessageCost(float(start), float(slope), float(np.median(away)), float(away.max()))


@dataclass(frozen=True)
class RingTerms:
    """What one message between two neighbours of a ring costs: `alpha_s` before its first byte,
    `beta_s_per_byte` for each.
    """

    alpha_s: float
    beta_s_per_byte: float


def ring_terms(cost: MessageCost, ranks: int) -> RingTerms:
    """Read an all-reduce of n bytes as that of a ring: 2 (p - 1) messages of n / p bytes.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", JPDC 2009.
    """
    messages = 2 * (ranks - 1)
    return RingTerms(cost.start_s / messages, cost.per_byte_s * ranks / messages)
