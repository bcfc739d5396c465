"""Metrics against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from matinee.errors import ConfigError
from matinee.evaluation.calibration import expected_calibration_error
from matinee.evaluation.classification import (
    ClassificationResult,
    confusion_matrix,
    macro_f1,
    top_k,
    weighted_f1,
)


@given(st.integers(2, 12), st.integers(1, 60), st.integers(0, 2**31))
def test_metrics_equal_scikit_learn(classes, count, seed):
    """Random labels and probabilities; classes may be absent."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    scores = rng.dirichlet(np.ones(classes), count)
    predicted = scores.argmax(axis=1)
    table = confusion_matrix(labels, predicted, classes)
    names = list(range(classes))
    assert table.tolist() == metrics.confusion_matrix(labels, predicted, labels=names).tolist()
    present = sorted(set(labels.tolist()) | set(predicted.tolist()))
    wanted = metrics.f1_score(labels, predicted, labels=present, average="macro", zero_division=0)
    assert macro_f1(table) == pytest.approx(wanted)
    wanted = metrics.f1_score(labels, predicted, average="weighted", zero_division=0)
    assert weighted_f1(table) == pytest.approx(wanted)
    assert top_k(labels, scores, 1) == pytest.approx(metrics.accuracy_score(labels, predicted))
    if classes > 5:
        wanted = metrics.top_k_accuracy_score(labels, scores, k=5, labels=names)
        assert top_k(labels, scores, 5) == pytest.approx(wanted)
    else:
        assert top_k(labels, scores, 5) == 1.0


def test_per_class_accuracy_is_recall_and_absent_classes_have_none():
    """By hand."""
    result = ClassificationResult(
        classes=("a", "b", "c"),
        index=np.array([4, 5, 9]),
        samples=("x", "y", "z"),
        labels=np.array([0, 0, 1]),
        probabilities=np.array([[0.6, 0.4, 0.0], [0.2, 0.3, 0.5], [0.1, 0.8, 0.1]]),
        skipped=("w",),
    )
    found = result.metrics()
    assert found["per_class"] == {"a": 0.5, "b": 1.0, "c": None}
    assert found["confusion"] == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert found["samples"] == 3 and found["skipped"] == 1
    assert found["weighted_f1"] == pytest.approx((2 * 2 / 3 + 1) / 3)
    # Each sample has a bin of its own: confidences 0.6, 0.5 and 0.8; right, wrong, right.
    assert found["ece"] == pytest.approx((0.4 + 0.5 + 0.2) / 3)
    assert result.predictions()[1] == {
        "sample": "y", "index": 5, "label": "a", "predicted": "c", "probability": 0.5,
    }  # fmt: skip


def test_nan_is_refused():
    """argmax would call it the most probable class."""
    labels, scores = np.array([0, 1]), np.array([[0.5, 0.5], [np.nan, 0.5]])
    with pytest.raises(ConfigError, match="NaN among the probabilities"):
        top_k(labels, scores, 1)
    with pytest.raises(ConfigError, match="NaN among the probabilities"):
        expected_calibration_error(labels, scores)
