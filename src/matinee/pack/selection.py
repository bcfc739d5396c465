"""The samples of a data set, whatever lies behind them: count, splits, selection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from matinee.errors import ConfigError


class SampleTable:
    """A data set on disk with a row for each sample.

    `samples` is a pyarrow Table with at least the columns sample (id), split and label; `classes`
    the labels in order; `meta` the content of the manifest.
    """

    path: Path
    meta: dict[str, Any]
    classes: tuple[str, ...]
    samples: pa.Table

    def __len__(self) -> int:
        return int(self.samples.num_rows)

    def captions(self, index: int) -> tuple[str, ...]:
        """What is said about sample `index`: the lines of its `text`, none without that column."""
        if "text" not in self.samples.column_names:
            return ()
        # Taking rows of a column in several parts joins them first: too slow for a single row.
        return _lines(self.samples.column("text")[index].as_py())

    def captions_of(self, rows: NDArray[np.int64]) -> list[tuple[str, ...]]:
        """`captions` of many samples at once."""
        if "text" not in self.samples.column_names:
            return [()] * len(rows)
        texts = self.samples.column("text").take(pa.array(rows)).to_pylist()
        return [_lines(text) for text in texts]

    def splits(self) -> dict[str, int]:
        """Samples of each split; samples without one count under ""."""
        names = self.samples.column("split").to_pylist()
        counts: dict[str, int] = {}
        for name in names:
            counts[name or ""] = counts.get(name or "", 0) + 1
        return dict(sorted(counts.items()))

    def select(self, which: str | None) -> NDArray[np.int64]:
        """Indices of samples, in table order.

        Args:
            which: the name of a split, "column=value[,value…]" for any column, or None for all.

        Raises:
            ConfigError: no such split or column, or nothing matches.
        """
        if which is None:
            return np.arange(len(self))
        column, given, values = which.partition("=")
        if not given:
            column, values = "split", which
        if column not in self.samples.column_names:
            raise ConfigError(
                f"{self.path} has no column {column!r}; it has: "
                f"{', '.join(self.samples.column_names)}"
            )
        wanted = set(values.split(","))
        held = [str(v) if v is not None else "" for v in self.samples.column(column).to_pylist()]
        found = np.flatnonzero([value in wanted for value in held])
        if not len(found):
            known = ", ".join(sorted(set(held))[:10]) or "nothing"
            raise ConfigError(
                f"{self.path} has no sample with {column} {values!r}; it has: {known}"
            )
        return found.astype(np.int64)


def _lines(text: str | None) -> tuple[str, ...]:
    return tuple(line.strip() for line in (text or "").splitlines() if line.strip())
