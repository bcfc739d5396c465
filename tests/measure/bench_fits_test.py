"""Fits find what made-up data was made of."""

import numpy as np
import pytest

from matinee.errors import ConfigError
from matinee.measure.bench.fits import MessageCost, fit_messages, growth, ring_terms

SIZES = [2**n for n in range(10, 27, 2)]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_a_power_is_found_exactly(power):
    x = [196, 392, 784, 1568]
    grown = growth(x, [3.7 * n**power for n in x])
    assert grown.last == pytest.approx(power) and grown.fit == pytest.approx(power)


def test_the_last_doubling_sees_past_what_is_constant():
    """a + b x² looks flatter than 2 where a still weighs."""
    x = [100, 200, 400, 800, 1600]
    grown = growth(x, [50_000 + n**2 for n in x])
    assert 1.9 < grown.last < 2 and grown.fit < 1.6


@pytest.mark.parametrize(("x", "y"), [([1], [1]), ([1, 2], [1, 0]), ([1, 2], [1, 2, 3])])
def test_what_has_no_exponent_is_refused(x, y):
    with pytest.raises(ConfigError, match="exponent"):
        growth(x, y)


def test_latency_and_bandwidth_are_found_exactly():
    cost = fit_messages(SIZES, [3e-5 + n * 2e-10 for n in SIZES])
    assert cost.start_s == pytest.approx(3e-5) and cost.per_byte_s == pytest.approx(2e-10)
    assert cost.worst < 1e-9 and cost.seconds(1e6) == pytest.approx(3e-5 + 2e-4)


def test_noise_of_a_fifth_moves_them_little():
    """The median over draws is right: large messages do not drown small ones."""
    rng, found = np.random.default_rng(0), []
    for _ in range(200):
        seconds = [(3e-5 + n * 2e-10) * rng.uniform(0.8, 1.2) for n in SIZES]
        cost = fit_messages(SIZES, seconds)
        # numpy's weighted fit is an independent one (weights multiply residuals).
        slope, start = np.polyfit(SIZES, seconds, 1, w=1 / np.array(seconds))
        assert cost.start_s == pytest.approx(start, rel=1e-6)
        assert cost.per_byte_s == pytest.approx(slope, rel=1e-6)
        found.append((cost.start_s, cost.per_byte_s))
    assert np.median(found, axis=0) == pytest.approx([3e-5, 2e-10], rel=0.05)


@pytest.mark.parametrize(
    ("seconds", "terms"),
    [([1e-3, 2e-3, 4.2e-3], (0.0, None)), ([2e-3, 2e-3, 1.5e-3], (None, 0.0))],
)
def test_neither_term_becomes_negative(seconds, terms):
    """The other is then fitted alone: no nearer value of it deviates less."""
    sizes = [1000, 2000, 4000]
    cost = fit_messages(sizes, seconds)
    for value, expected in zip((cost.start_s, cost.per_byte_s), terms, strict=True):
        assert value > 0 if expected is None else value == expected

    def deviation(factor):
        return sum((factor * cost.seconds(n) / t - 1) ** 2 for n, t in zip(sizes, seconds))  # noqa: B905

    assert deviation(1.0) <= min(deviation(0.99), deviation(1.01))


@pytest.mark.parametrize(("sizes", "seconds"), [([8, 8], [1, 1]), ([8, 16], [1, 0])])
def test_what_cannot_be_fitted_is_refused(sizes, seconds):
    with pytest.raises(ConfigError, match="latency and bandwidth"):
        fit_messages(sizes, seconds)


@pytest.mark.parametrize("ranks", [2, 3, 8, 100])
def test_a_ring_of_these_terms_takes_the_time_fitted(ranks):
    """2 (p - 1) rounds, in each of which all ranks send one p-th of the message at once."""
    terms = ring_terms(MessageCost(1e-4, 3e-9, 0, 0), ranks)
    for size in (1e3, 1e8):
        rounds = sum(
            terms.alpha_s + size / ranks * terms.beta_s_per_byte for _ in range(2 * (ranks - 1))
        )
        assert rounds == pytest.approx(1e-4 + 3e-9 * size)
