"""The learning-rate range test as pure functions, against known curves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matinee.errors import ConfigError
from matinee.training.search.lr_curve import Smoothed, range_rates, suggest


def smooth(losses, steps=None):
    smoothed = Smoothed(steps or len(losses))
    for loss in losses:
        smoothed.add(loss)
    return np.array(smoothed.values)


def valley(rates, minimum, *, noise=0.0, seed=0):
    """Flat at 2, falling around a hundredth of `minimum`, exploding beyond it."""
    x = np.log10(rates / minimum)
    losses = 2 - 1.5 / (1 + np.exp(-4 * (x + 1.2))) + 0.5 * np.exp(6 * x)
    return losses + noise * np.random.default_rng(seed).standard_normal(len(rates))


def test_rates_rise_by_one_factor_from_end_to_end():
    rates = range_rates(1e-7, 10, 100)
    assert len(rates) == 100 and rates[0] == pytest.approx(1e-7) and rates[-1] == pytest.approx(10)
    assert np.allclose(rates[1:] / rates[:-1], 10 ** (8 / 99), rtol=1e-12)


@pytest.mark.parametrize(
    ("low", "high", "steps", "words"),
    [
        (1e-2, 1e-2, 100, "--from 0.01 --to 0.01"),
        (0, 1, 100, "--from 0"),
        (1, 0.1, 100, "0 < from < to"),
        (1e-5, float("inf"), 100, "--to inf"),
        (float("nan"), 1, 100, "--from nan"),
        (1e-5, 1, 19, "--steps 19: at least 20"),
    ],
)
def test_ranges_without_a_curve_are_refused(low, high, steps, words):
    with pytest.raises(ConfigError, match=words):
        range_rates(low, high, steps)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=60), st.integers(20, 500))
def test_smoothing_is_a_weighted_mean_of_all_losses_so_far(losses, steps):
    """By its definition: weights fall by `keep` with age, and sum to one."""
    keep = 1 - 20 / steps
    expected = []
    for n in range(1, len(losses) + 1):
        weights = np.array([keep**age for age in range(n)][::-1], dtype=np.float64)
        expected.append(float((weights * losses[:n]).sum() / weights.sum()))
    assert np.allclose(smooth(losses, steps), expected, rtol=1e-9)


def test_the_test_ends_at_four_times_the_best_and_at_what_is_not_finite():
    smoothed = Smoothed(20)  # keeps nothing of the losses before
    assert [smoothed.add(loss) for loss in (2.0, 1.0, 3.9, 4.0)] == [False] * 4
    assert smoothed.add(4.1)
    assert Smoothed(20).add(float("nan")) and Smoothed(20).add(float("inf"))


@pytest.mark.parametrize("minimum", [1e-3, 0.1, 3.0])
def test_a_clear_valley_gives_a_rate_below_its_minimum(minimum):
    """The minimum as a fine grid of the curve finds it; smoothing lags by a part of a decade."""
    rates = range_rates(1e-7, 100, 200)
    fine = range_rates(1e-7, 100, 100_000)
    true = fine[valley(fine, minimum).argmin()]
    losses = valley(rates, minimum)
    found = suggest(rates, losses, smooth(losses))
    assert found.tenth == pytest.approx(found.minimum / 10)
    assert np.log(found.lr) == pytest.approx(np.log([found.tenth, found.steepest]).mean())
    assert true <= found.minimum < 3 * true
    falls = fine[np.gradient(valley(fine, minimum), np.log10(fine)).argmin()]
    assert falls / 1.5 < found.steepest < 5 * falls and found.steepest < found.minimum


def test_noise_moves_the_suggestion_less_than_what_it_is_made_of():
    """Over 100 draws of the noise, in logarithms."""
    rates = range_rates(1e-7, 100, 100)
    found = []
    for seed in range(100):
        losses = valley(rates, 0.1, noise=0.15, seed=seed)
        found.append(suggest(rates, losses, smooth(losses)))
    spread = {
        name: np.std([np.log10(getattr(f, name)) for f in found])
        for name in ("lr", "tenth", "steepest")
    }
    assert spread["lr"] < 0.9 * min(spread["tenth"], spread["steepest"]), spread


def test_a_flat_noisy_curve_gives_no_rate():
    """On each of 200 draws; with the reason."""
    rates = range_rates(1e-7, 10, 100)
    for seed in range(200):
        losses = 2 + 0.1 * np.random.default_rng(seed).standard_normal(100)
        found = suggest(rates, losses, smooth(losses))
        assert found.lr is None and "never clearly fell" in found.reason, seed


def test_a_curve_that_diverges_at_once_says_so():
    rates = range_rates(1, 10, 100)
    losses = np.array([2.0, 3.0, 9.0])
    found = suggest(rates, losses, losses)
    assert found.lr is None and "lower --from" in found.reason
    assert suggest(rates, losses[:0], losses[:0]).lr is None  # not one finite loss


def test_a_curve_that_still_falls_at_its_end_says_so():
    rates = range_rates(1e-7, 1e-2, 100)
    losses = valley(rates, 1.0)
    found = suggest(rates, losses, smooth(losses))
    assert found.minimum == rates[-1] and "raise --to" in found.reason
