"""What the metrics share about arrays: rows in pieces, rows of length one, no NaN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.errors import ConfigError

_CHUNK = 2**22  # values looked at together: bounds the temporaries, not the result


def row_chunks(matrix: NDArray[Any]) -> Iterator[slice]:
    """Slices of rows that hold a few million values each, so that temporaries stay small."""
    rows = max(1, _CHUNK // max(matrix.shape[1], 1))
    for start in range(0, matrix.shape[0], rows):
        yield slice(start, min(start + rows, matrix.shape[0]))


def floating(matrix: NDArray[Any]) -> NDArray[Any]:
    """The matrix itself, or in float64 where its values cannot be negated (integers, bool)."""
    return matrix if matrix.dtype.kind == "f" else matrix.astype(np.float64)


def refuse_nan(values: NDArray[Any], what: str) -> None:
    """An error if any of the values is no number: an order of them would mean nothing.

    Raises:
        ConfigError: naming the values.
    """
    if np.isnan(values).any():
        raise ConfigError(f"NaN among the {what}: nothing can be ranked by them")


def unit_rows(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """Each row divided by its Euclidean length.

    Raises:
        ConfigError: a row of length zero, or not finite.
    """
    wide = vectors.astype(np.float64)
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    bad = ~(np.isfinite(length) & (length > 0)).ravel()
    if bad.any():
        raise ConfigError(f"embedding {int(bad.argmax())} (from 0) is zero or not finite")
    wide /= length
    return wide
