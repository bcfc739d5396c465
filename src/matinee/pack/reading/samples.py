"""The samples of a pack by the million: held compactly, or read column by column when asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from matinee.errors import PackError
from matinee.pack.reading.chunks import ChunkIndex
from matinee.pack.reading.names import check_distinct
from matinee.pack.reading.table_file import Coded, TableFile, compact, narrow, whole


class Samples:
    """The table of samples, which answers as a pyarrow Table does, column by column.

    Names, splits, labels and spans are held in memory (about 40 bytes a sample); other columns are
    read when they are asked for, and large ones are then mapped. See `TableFile.mapped`.
    """

    def __init__(self, table: TableFile, chunks: ChunkIndex) -> None:
        self._table, self._videos = table, chunks.videos
        self._columns: dict[str, Any] = {}
        self.num_rows = table.num_rows
        self.column_names = list(table.column_names)
        self.ids = whole(table.column("sample"))
        if (twice := check_distinct(self.ids)) is not None:
            raise PackError(f"{table.shown} holds the sample {twice!r} twice; it is damaged")
        names = whole(table.column("video"))
        video = chunks.videos.rows(names)
        unknown = np.flatnonzero(video < 0)
        if len(unknown):
            sample, name = (a[int(unknown[0])].as_py() for a in (self.ids, names))
            raise PackError(
                f"{table.shown}: sample {sample!r} is of video {name!r}, which the pack lacks "
                f"({len(unknown)} such samples)"
            )
        del names
        self.video = compact(video)
        self.split, self.label = table.coded("split"), table.coded("label")
        rates, lengths = chunks.rates()[video], chunks.lengths[video].astype(np.int64)
        start = self._frames("start_s", rates, np.zeros_like(lengths))
        end = self._frames("end_s", rates, lengths)
        # A span is never empty, never outside its video.
        start = np.clip(start, 0, lengths - 1)
        end = np.minimum(np.maximum(end, start + 1), lengths)
        self.first, self.count = narrow(start), narrow(end - start)

    def _frames(
        self, name: str, rates: NDArray[np.float64], otherwise: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The first frame that is shown at a time in seconds or later, where there is a time."""
        column = self._table.column(name)
        if column.null_count == len(column):
            return otherwise
        given = column.is_valid().to_numpy()
        seconds = column.to_numpy()
        if not np.all(np.isfinite(seconds[given])):
            raise PackError(f"{self._table.shown}: {name} is not finite; the pack is damaged")
        frames = np.ceil(np.where(given, seconds, 0) * rates - 1e-6)
        return np.where(given, np.clip(frames, -1, 2.0**40).astype(np.int64), otherwise)

    def __len__(self) -> int:
        return self.num_rows

    def column(self, name: str) -> Any:
        """A column, as pyarrow gives it.

        Raises:
            KeyError: there is none of this name.
            PackError: it is damaged.
        """
        if name in self._columns:
            return self._columns[name]
        if name == "sample":
            return self.ids
        if name == "video":
            return Coded(np.asarray(self.video, np.int64), self._videos.names).arrow()
        if name in ("split", "label"):
            coded: Coded = getattr(self, name)
            return coded.arrow()
        if name not in self.column_names:
            raise KeyError(f"no column {name!r} among {', '.join(self.column_names)}")
        self._columns[name] = self._table.mapped(name)
        return self._columns[name]

    def select(self, names: list[str]) -> pa.Table:
        """Some columns as a table in memory."""
        columns = {name: self.column(name) for name in names}
        for name, column in columns.items():
            if pa.types.is_dictionary(column.type):
                columns[name] = column.cast(column.type.value_type)
        return pa.table(columns)

    def append_column(self, name: str, values: Any) -> Samples:
        """The same samples with a column more."""
        more = object.__new__(Samples)
        more.__dict__ = {
            **self.__dict__,
            "column_names": [*self.column_names, name],
            "_columns": {**self._columns, name: values},
        }
        return more

    def to_pylist(self) -> list[dict[str, Any]]:
        """All rows: for small packs."""
        return self.select(self.column_names).to_pylist()  # type: ignore[no-any-return]
