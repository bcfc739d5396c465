"""Mean average precision where a sample may have several labels, or none."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.errors import ConfigError
from matinee.evaluation.arrays import refuse_nan


def average_precision(labels: NDArray[np.bool_], scores: NDArray[Any]) -> float:
    """Sum over thresholds of precision × gain in recall, of labels [N] and scores [N].

    Equal scores share a threshold, so their order does not matter. Without a positive: NaN.
    """
    positives = int(labels.sum())
    if not positives:
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    last = np.append(ordered[1:] != ordered[:-1], True)  # of each run of equal scores
    hits = np.cumsum(labels[order])[last]
    precision = hits / (np.nonzero(last)[0] + 1)
    return float((precision * np.diff(hits, prepend=0)).sum() / positives)


def multi_label_metrics(labels: NDArray[Any], scores: NDArray[Any]) -> dict[str, Any]:
    """`map_macro`, `map_micro`, `class_ap` [K] and `classes_without_positives`.

    Args:
        labels: 0 or 1 [N, K]. scores: logits or probabilities [N, K].

    Macro is the mean over the classes that occur; the others have None in `class_ap`, and are
    counted. Micro treats every pair of sample and class as one sample.

    Raises:
        ConfigError: shapes that disagree, labels beside 0 and 1, a NaN, no positive at all.
    """
    if labels.shape != scores.shape or labels.ndim != 2:
        raise ConfigError(
            f"labels of shape {labels.shape} and scores of shape {scores.shape}: both must be "
            "[samples, classes]"
        )
    if not np.isin(labels, (0, 1)).all():
        raise ConfigError("multi-label targets must be 0 or 1")
    refuse_nan(scores, "scores")
    truth = labels.astype(bool)
    if not truth.any():
        raise ConfigError("no sample has a label: average precision is undefined")
    values = scores.astype(np.float64)
    classes = [average_precision(truth[:, k], values[:, k]) for k in range(labels.shape[1])]
    occurring = [value for value in classes if not np.isnan(value)]
    return {
        "map_macro": float(np.mean(occurring)),
        "map_micro": average_precision(truth.ravel(), values.ravel()),
        "class_ap": [None if np.isnan(value) else value for value in classes],
        "classes_without_positives": len(classes) - len(occurring),
    }
