"""The samples of a data set, whatever lies behind them: count, splits, selection."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from matinee.errors import ConfigError


class SampleTable:
    """A data set with a row for each sample.

    `samples` has the columns of a pyarrow Table, at least sample (id), split and label; `classes`
    the labels in order; `meta` the content of the manifest; `path` where the set is: a folder, or
    an address (without what is secret in it).
    """

    path: Path | str
    meta: dict[str, Any]
    classes: tuple[str, ...]
    samples: Any

    def __len__(self) -> int:
        return int(self.samples.num_rows)

    @property
    def name(self) -> str:
        """The last part of `path`."""
        path = self.path
        return path.resolve().name if isinstance(path, Path) else path.rpartition("/")[2]

    def digest(self) -> str:
        """Stands for the content of the manifest and the tables."""
        return digest_of(Path(self.path))

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
        counts: dict[str, int] = {}
        for row in self.samples.column("split").value_counts().to_pylist():
            name = row["values"] or ""
            counts[name] = counts.get(name, 0) + row["counts"]
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
        # A cell is compared as it is printed; an empty one as "".
        held = self.samples.column(column).unique().to_pylist()
        words = ["" if value is None else str(value) for value in held]
        fitting = [value for value, word in zip(held, words, strict=True) if word in wanted]
        rows = np.empty(0, dtype=np.int64)
        if fitting:
            cells = self.samples.column(column)
            kind = cells.type.value_type if pa.types.is_dictionary(cells.type) else cells.type
            match = pc.is_in(cells, value_set=pa.array(fitting, kind))
            rows = np.flatnonzero(match.to_numpy(zero_copy_only=False)).astype(np.int64)
        if not len(rows):
            known = ", ".join(sorted(set(words))[:10]) or "nothing"
            raise ConfigError(
                f"{self.path} has no sample with {column} {values!r}; it has: {known}"
            )
        return rows


def _lines(text: str | None) -> tuple[str, ...]:
    return tuple(line.strip() for line in (text or "").splitlines() if line.strip())


def digest_of(folder: Path) -> str:
    """Stands for the content of the manifest and the tables in a folder."""
    digest = hashlib.sha256()
    for file in sorted([*folder.glob("*.json"), *folder.glob("*.parquet")]):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
