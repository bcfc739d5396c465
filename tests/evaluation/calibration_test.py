"""Calibration against torchmetrics and a loop over bins."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_calibration_error

from matinee.evaluation.calibration import expected_calibration_error, reliability


@given(st.integers(2, 9), st.integers(1, 80), st.integers(1, 20), st.integers(0, 2**31))
def test_error_equals_torchmetrics(classes, count, bins, seed):
    """Random confidences of any sharpness, never on an edge of a bin."""
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(classes, rng.choice([0.1, 1, 5])), count)
    labels = rng.integers(0, classes, count)
    edges = np.linspace(0, 1, bins + 1)
    if np.abs(probabilities.max(axis=1)[:, None] - edges).min() < 1e-6:
        return  # there the conventions differ: see the test of edges
    wanted = multiclass_calibration_error(
        torch.from_numpy(probabilities), torch.from_numpy(labels), classes, n_bins=bins
    ).item()
    found = expected_calibration_error(labels, probabilities, bins=bins)
    assert found == pytest.approx(wanted, abs=1e-5)


def test_a_bin_holds_its_upper_edge_as_in_the_paper():
    """(m - 1) / M < confidence ≤ m / M; a confidence of one, or of one and a rounding, is in."""
    top = np.array([0.5, 0.75, 0.76, 1.0, 1.0 + 1e-12])
    table = reliability(np.zeros(5, np.int64), np.stack([top, 1 - top], axis=1), bins=4)
    assert table.count.tolist() == [0, 1, 1, 3]
    assert table.edges.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert np.isnan(table.accuracy[0]) and np.isnan(table.confidence[0])


def test_the_table_equals_a_loop_over_bins():
    """Count, mean confidence and accuracy of each."""
    rng = np.random.default_rng(1)
    probabilities = rng.dirichlet(np.ones(4), 500)
    labels = rng.integers(0, 4, 500)
    table = reliability(labels, probabilities)
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    for m in range(15):
        inside = (confidence > m / 15) & (confidence <= (m + 1) / 15)
        assert table.count[m] == inside.sum()
        if inside.any():
            assert table.confidence[m] == pytest.approx(confidence[inside].mean())
            assert table.accuracy[m] == pytest.approx(right[inside].mean())
    assert table.count.sum() == 500


def test_honest_probabilities_have_a_small_error_and_sure_ones_that_are_wrong_a_large():
    """Labels drawn from the very probabilities; then every label another."""
    rng = np.random.default_rng(2)
    probabilities = rng.dirichlet(np.full(3, 0.5), 20_000)
    drawn = (rng.random((20_000, 1)) > probabilities.cumsum(axis=1)).sum(axis=1)
    assert expected_calibration_error(drawn, probabilities) < 0.02
    sure = np.tile([1.0, 0.0], (50, 1))
    assert expected_calibration_error(np.ones(50, np.int64), sure) == 1
    assert expected_calibration_error(np.zeros(50, np.int64), sure) == 0
