"""Do predicted probabilities mean what they say? Reliability and expected calibration error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.evaluation.arrays import refuse_nan


@dataclass(frozen=True)
class Reliability:
    """Predictions by confidence, the probability of the predicted class, in M bins of equal width.

    edges: [M + 1] from 0 to 1; a bin holds its upper edge, the first its lower one as well.
    count: int64 [M]. confidence, accuracy: float64 [M], means over the bin, NaN where it is empty.
    """

    edges: NDArray[np.float64]
    count: NDArray[np.int64]
    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]

    def expected_error(self) -> float:
        """Mean over samples of |accuracy − confidence| of their bin."""
        used = self.count > 0
        gap = np.abs(self.accuracy[used] - self.confidence[used])
        return float((self.count[used] * gap).sum() / self.count.sum())


def reliability(
    labels: NDArray[np.int64], probabilities: NDArray[Any], *, bins: int = 15
) -> Reliability:
    """Reliability of probabilities [N, K] whose labels are [N]; its table makes the diagram.

    Raises:
        ConfigError: a NaN.
    Source: Guo et al., arXiv 1706.04599, §2.
    """
    refuse_nan(probabilities, "probabilities")
    predicted = probabilities.argmax(axis=1)
    confidence = probabilities[np.arange(len(labels)), predicted].astype(np.float64)
    right = (predicted == labels).astype(np.float64)
    edges = np.linspace(0, 1, bins + 1)
    # Rounding may carry a sum of probabilities over several views a little above 1.
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        return Reliability(
            edges=edges,
            count=count,
            confidence=np.bincount(place, confidence, bins) / count,
            accuracy=np.bincount(place, right, bins) / count,
        )


def expected_calibration_error(
    labels: NDArray[np.int64], probabilities: NDArray[Any], *, bins: int = 15
) -> float:
    """ECE of probabilities [N, K], in 0 … 1; 0 is perfect. See `reliability`."""
    return reliability(labels, probabilities, bins=bins).expected_error()
