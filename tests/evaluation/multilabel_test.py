"""Multi-label mAP against scikit-learn and torchmetrics."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torchmetrics.functional.classification import multilabel_average_precision

from matinee.errors import ConfigError
from matinee.evaluation.multilabel import average_precision, multi_label_metrics


@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**31))
def test_precision_equals_scikit_learn_with_ties_and_absent_classes(classes, count, levels, seed):
    """Macro over the classes that occur, micro over all pairs."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, (count, classes)) * (rng.random(classes) < 0.8)
    labels[0, 0] = 1
    scores = rng.integers(0, levels, labels.shape) / levels
    found = multi_label_metrics(labels, scores)
    occurs = labels.any(axis=0)
    wanted = average_precision_score(labels[:, occurs], scores[:, occurs], average="macro")
    assert found["map_macro"] == pytest.approx(wanted)
    wanted = average_precision_score(labels, scores, average="micro")
    assert found["map_micro"] == pytest.approx(wanted)
    for k in range(classes):
        if occurs[k]:
            wanted = average_precision_score(labels[:, k], scores[:, k])
            assert found["class_ap"][k] == pytest.approx(wanted)
        else:
            assert found["class_ap"][k] is None
    assert found["classes_without_positives"] == (~occurs).sum()


def test_precision_equals_torchmetrics_from_logits():
    """Any increasing function of the scores gives the same; single precision there."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (200, 5))
    logits = rng.standard_normal((200, 5)) + labels
    found = multi_label_metrics(labels, logits)
    for average, name in (("macro", "map_macro"), ("micro", "map_micro")):
        wanted = multilabel_average_precision(
            torch.from_numpy(logits).sigmoid(), torch.from_numpy(labels), 5, average=average
        )
        assert found[name] == pytest.approx(wanted.item(), abs=1e-5)


def test_order_of_equal_scores_does_not_matter():
    """All equal: the precision is the share of positives."""
    labels = np.array([1, 1, 0, 0, 0], dtype=bool)
    assert average_precision(labels, np.ones(5)) == average_precision(labels[::-1], np.ones(5))
    assert average_precision(labels, np.ones(5)) == pytest.approx(2 / 5)
    assert np.isnan(average_precision(np.zeros(3, dtype=bool), np.ones(3)))


def test_what_is_no_multi_label_target_is_refused():
    """One line each."""
    with pytest.raises(ConfigError, match="0 or 1"):
        multi_label_metrics(np.array([[0, 2]]), np.zeros((1, 2)))
    with pytest.raises(ConfigError, match="NaN"):
        multi_label_metrics(np.array([[0, 1]]), np.array([[0, np.nan]]))
    with pytest.raises(ConfigError, match="no sample has a label"):
        multi_label_metrics(np.zeros((3, 2)), np.zeros((3, 2)))
    with pytest.raises(ConfigError, match=r"\[samples, classes\]"):
        multi_label_metrics(np.zeros((3, 2)), np.zeros((2, 3)))
