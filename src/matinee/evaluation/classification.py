"""Classification metrics. Pure functions of labels and probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.evaluation.arrays import refuse_nan
from matinee.evaluation.calibration import expected_calibration_error


def confusion_matrix(
    labels: NDArray[np.int64], predicted: NDArray[np.int64], num_classes: int
) -> NDArray[np.int64]:
    """Counts [K, K]: row = true class, column = predicted class."""
    flat = np.bincount(labels * num_classes + predicted, minlength=num_classes**2)
    return flat.reshape(num_classes, num_classes)


def top_k(labels: NDArray[np.int64], probabilities: NDArray[np.float64], k: int) -> float:
    """Part of samples whose label is among the `k` most probable classes; ties: lower index.

    Raises:
        ConfigError: a NaN.
    """
    refuse_nan(probabilities, "probabilities")
    k = min(k, probabilities.shape[1])
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :k]
    return float((best == labels[:, None]).any(axis=1).mean())


def macro_f1(confusion: NDArray[np.int64]) -> float:
    """Mean over classes that occur, of F1 = 2·hits / (labels + predictions)."""
    hits = np.diag(confusion).astype(np.float64)
    total = confusion.sum(axis=0) + confusion.sum(axis=1)
    occurs = total > 0
    return float((2 * hits[occurs] / total[occurs]).mean())


def weighted_f1(confusion: NDArray[np.int64]) -> float:
    """Mean over samples of the F1 of their true class."""
    hits, support = np.diag(confusion).astype(np.float64), confusion.sum(axis=1)
    total = support + confusion.sum(axis=0)
    occurs = support > 0
    f1 = 2 * hits[occurs] / total[occurs]
    return float((f1 * support[occurs]).sum() / support.sum())


@dataclass(frozen=True)
class ClassificationResult:
    """Predictions over a set of samples.

    index: int64 [N], rows of the pack. labels: int64 [N]. probabilities: float64 [N, K], averaged
    over views. skipped: ids of samples none of whose views could be read.
    """

    classes: tuple[str, ...]
    index: NDArray[np.int64]
    samples: tuple[str, ...]
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    skipped: tuple[str, ...]

    def metrics(self) -> dict[str, Any]:
        """top1, top5, macro_f1, weighted_f1, ece (expected calibration error, 15 bins), per_class
        (label → accuracy, None if absent), confusion, samples, skipped (how many).

        Raises:
            ConfigError: a NaN among the probabilities.
        """
        predicted = self.probabilities.argmax(axis=1)
        confusion = confusion_matrix(self.labels, predicted, len(self.classes))
        support = confusion.sum(axis=1)
        return {
            "top1": top_k(self.labels, self.probabilities, 1),
            "top5": top_k(self.labels, self.probabilities, 5),
            "macro_f1": macro_f1(confusion),
            "weighted_f1": weighted_f1(confusion),
            "ece": expected_calibration_error(self.labels, self.probabilities),
            "per_class": {
                name: float(confusion[i, i] / support[i]) if support[i] else None
                for i, name in enumerate(self.classes)
            },
            "confusion": confusion.tolist(),
            "samples": len(self.labels),
            "skipped": len(self.skipped),
        }

    def predictions(self) -> list[dict[str, Any]]:
        """One row a sample: sample, row of the pack, label, predicted, probability."""
        best = self.probabilities.argmax(axis=1)
        return [
            {
                "sample": self.samples[i],
                "index": int(self.index[i]),
                "label": self.classes[self.labels[i]],
                "predicted": self.classes[best[i]],
                "probability": float(self.probabilities[i, best[i]]),
            }
            for i in range(len(self.labels))
        ]
