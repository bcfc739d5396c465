"""One parquet table, read column by column and checked: nothing of it is trusted."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from matinee.errors import PackError, first_line

_MAX_ROWS = 1 << 31
_MAX_BYTES = 1 << 35  # of a column, as the file itself states it
_IN_MEMORY = 16 << 20  # bytes of a column; beyond, it is mapped from a file without a name
_BATCH = 1 << 16  # rows
# Repeated values take almost no bytes of a file and all of memory. The chunk tables of packs have
# about 0.2 rows a byte.
_ROWS_FREE, _ROWS_PER_BYTE = 1 << 16, 8


@dataclass(frozen=True)
class Coded:
    """A column of few distinct words: `codes` [N] are rows of `words`, -1 where there is none."""

    codes: NDArray[np.signedinteger[Any]]
    words: pa.Array

    def __getitem__(self, row: int) -> str | None:
        code = int(self.codes[row])
        return None if code < 0 else str(self.words[code].as_py())

    def arrow(self) -> pa.DictionaryArray:
        """The column as Arrow has it."""
        codes = pa.array(self.codes, mask=self.codes < 0)
        return pa.DictionaryArray.from_arrays(codes, self.words)


class TableFile:
    """A parquet file on disk that has the columns of `schema`, in types that turn into theirs.

    Args:
        shown: what errors call the file, where `path` is a copy of it.

    Raises:
        PackError: missing, damaged, or of another layout; also by every method.
    """

    def __init__(self, path: Path, schema: pa.Schema, shown: str | None = None) -> None:
        self._schema, self.shown = schema, shown or str(path)
        try:
            self._source = pa.OSFile(str(path))  # also read after its name is gone
        except FileNotFoundError:
            raise PackError(f"{self._folder} lacks {path.name}: the pack is damaged") from None
        except OSError as error:
            raise PackError(f"{self.shown} is damaged: {first_line(error)}") from None
        with self._damage():
            file = pq.ParquetFile(self._source)
            meta = file.metadata
        self.column_names: list[str] = file.schema_arrow.names
        self.num_rows: int = meta.num_rows
        # Not by column: there, damaged statistics end the process (pyarrow 26.0.1).
        sizes = [meta.row_group(group).total_byte_size for group in range(meta.num_row_groups)]
        too_large = sum(sizes) > _MAX_BYTES * max(1, meta.num_columns) or min(sizes, default=0) < 0
        if not 0 <= self.num_rows < _MAX_ROWS or too_large:
            raise PackError(f"{self.shown} is damaged: it states an impossible size")
        size = self._source.size()
        if self.num_rows > _ROWS_FREE + _ROWS_PER_BYTE * size:
            raise PackError(
                f"{self.shown} is damaged: it states {self.num_rows} rows in {size} bytes, more "
                f"than {_ROWS_PER_BYTE} a byte"
            )
        if len(set(self.column_names)) < len(self.column_names):
            twice = next(n for n in self.column_names if self.column_names.count(n) > 1)
            raise PackError(f"{self.shown} is damaged: it has the column {twice!r} twice")
        for field in schema:
            if field.name not in self.column_names:
                raise PackError(
                    f"{self.shown} lacks the column {field.name!r}: the pack is damaged"
                )

    @property
    def _folder(self) -> str:
        return self.shown.rpartition("/")[0] or "."

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
            raise PackError(f"{self.shown} is damaged: {first_line(error)}") from None

    def column(self, name: str) -> pa.ChunkedArray:
        """A column, checked, in memory."""
        with self._damage():
            table = pq.ParquetFile(self._source).read(columns=[name], use_threads=False)
        if table.num_rows != self.num_rows:
            raise PackError(f"{self.shown}, column {name!r}: lacks rows; the pack is damaged")
        return self._checked(name, table)

    def numbers(self, name: str) -> NDArray[Any]:
        """A column of numbers; without a value: NaN."""
        column = self.column(name)
        with self._damage():
            return np.asarray(column.to_numpy())

    def coded(self, name: str) -> Coded:
        """A column of words, each distinct one kept once."""
        with self._damage():
            file = pq.ParquetFile(self._source, read_dictionary=[name])
            column = self._checked(name, file.read(columns=[name], use_threads=False))
            if not pa.types.is_dictionary(column.type):
                column = column.dictionary_encode()
            coded = whole(column.unify_dictionaries())
            codes = coded.indices.fill_null(-1).to_numpy()
        return Coded(narrow(codes, signed=True), coded.dictionary)

    def mapped(self, name: str) -> pa.ChunkedArray:
        """A column that is read row by row later: a large one takes no memory of the process.

        It lies uncompressed in a file without a name, whose pages the system may drop and read
        again.
        """
        with self._damage():
            file = pq.ParquetFile(self._source, pre_buffer=False)
            batches = file.iter_batches(_BATCH, columns=[name], use_threads=False)
            held: list[pa.Table] = []
            while sum(table.nbytes for table in held) <= _IN_MEMORY:
                batch = next(batches, None)
                if batch is None:
                    return pa.concat_tables(held).column(name) if held else self.column(name)
                held.append(self._select(name, pa.Table.from_batches([batch])))
            column = self._map(name, held, batches)
        del file, batches
        give_back()
        return column

    def _map(
        self, name: str, held: list[pa.Table], more: Iterator[pa.RecordBatch]
    ) -> pa.ChunkedArray:
        with tempfile.NamedTemporaryFile(prefix="matinee-column-") as file:
            with pa.ipc.new_file(file.name, held[0].schema) as writer:
                while held:
                    writer.write_table(held.pop(0))
                for batch in more:
                    writer.write_table(self._select(name, pa.Table.from_batches([batch])))
            return pa.ipc.open_file(pa.memory_map(file.name)).read_all().column(name)

    def _select(self, name: str, table: pa.Table) -> pa.Table:
        return pa.table({name: self._checked(name, table)})

    def _checked(self, name: str, table: pa.Table) -> pa.ChunkedArray:
        if name not in table.column_names:
            raise PackError(f"{self.shown} lacks the column {name!r}: the pack is damaged")
        column = table.column(name)
        known = name in self._schema.names
        with self._damage():
            if known:
                field = self._schema.field(name)
                is_words = pa.types.is_dictionary(column.type)
                held = column.type.value_type if is_words else column.type
                if held != field.type:
                    try:
                        column = column.cast(field.type)
                    except pa.ArrowException as error:
                        raise PackError(f"{self.shown}, column {name!r}: {error}") from None
                if not field.nullable and column.null_count:
                    raise PackError(
                        f"{self.shown}, column {name!r}: empty values; the pack is damaged"
                    )
            column.validate(full=True)  # text that is no UTF-8, offsets outside
        return column


def whole(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_string(column.type) and column.nbytes >= 1 << 31:
        column = column.cast(pa.large_string())
    return column.combine_chunks()


def narrow(values: NDArray[Any], *, signed: bool = False) -> NDArray[Any]:
    """Integers in the smallest type that holds them all; read-only and of one item where they are
    all the same.
    """
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    kind = np.min_scalar_type(-high - 1 if signed else high)
    kind = np.promote_types(kind, np.min_scalar_type(low)) if low < 0 else kind
    if low == high:
        return np.broadcast_to(np.array(low, kind), len(values))
    return values.astype(kind)


def compact(values: NDArray[Any]) -> Sequence[int] | NDArray[Any]:
    """Integers 0, 1, 2, … without any memory, others as `narrow` has them."""
    if np.array_equal(values, np.arange(len(values))):
        return range(len(values))
    return narrow(values)


def give_back() -> None:
    """Return to the system what reading tables left in the allocators: tens of megabytes."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
