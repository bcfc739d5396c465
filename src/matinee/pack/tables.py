"""The parquet tables of a pack: written here, read and checked here."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from matinee.errors import PackError, first_line
from matinee.files import write_whole
from matinee.media.packets import VideoFormat
from matinee.pack.annotations import Sample
from matinee.pack.format import CHUNKS, CODECS, FILES, SAMPLES


class CodecRows:
    """Rows of the table of decoder setups, each distinct one once."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._numbers: dict[VideoFormat, int] = {}

    def number(self, fmt: VideoFormat) -> int:
        """The row of a setup, added if it is new."""
        if fmt not in self._numbers:
            self._numbers[fmt] = len(self.rows)
            self.rows.append(asdict(fmt))
        return self._numbers[fmt]


def write_tables(
    out: Path,
    *,
    files: list[dict[str, Any]],
    chunks: list[dict[str, Any]],
    codecs: list[dict[str, Any]],
    samples: Sequence[Sample],
) -> None:
    """Write the four tables of a pack."""
    _write(out / "files.parquet", pa.Table.from_pylist(files, schema=FILES))
    _write(out / "chunks.parquet", pa.Table.from_pylist(chunks, schema=CHUNKS))
    _write(out / "codecs.parquet", pa.Table.from_pylist(codecs, schema=CODECS))
    _write(out / "samples.parquet", _sample_table(samples))


def _sample_table(samples: Sequence[Sample]) -> pa.Table:
    schema = SAMPLES
    for name in dict.fromkeys(key for sample in samples for key, _ in sample.extra):
        schema = schema.append(pa.field(name, pa.string()))
    rows = [
        {
            "sample": s.id, "video": s.video, "start_s": s.start, "end_s": s.end,
            "split": s.split, "label": s.label, "text": s.text, **dict(s.extra),
        }
        for s in samples
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema)


def _write(path: Path, table: pa.Table) -> None:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    write_whole(path, buffer.getvalue())


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a table and check that it has the columns of `schema`, in their types.

    Raises:
        PackError: missing, damaged, or of another layout.
    """
    try:
        table = pq.read_table(path, memory_map=True)
    except FileNotFoundError:
        raise PackError(f"{path.parent} lacks {path.name}: the pack is damaged") from None
    except (pa.ArrowException, OSError) as error:
        raise PackError(f"{path} is damaged: {first_line(error)}") from None
    for column in schema:
        if column.name not in table.column_names:
            raise PackError(f"{path} lacks the column {column.name!r}: the pack is damaged")
        if table.schema.field(column.name).type != column.type:
            table = _cast(path, table, column)
        if not column.nullable and table.column(column.name).null_count:
            raise PackError(f"{path}, column {column.name!r}: empty values; the pack is damaged")
    return table


def _cast(path: Path, table: pa.Table, column: pa.Field) -> pa.Table:
    index = table.column_names.index(column.name)
    try:
        return table.set_column(index, column, table.column(column.name).cast(column.type))
    except pa.ArrowException as error:
        raise PackError(f"{path}, column {column.name!r}: {error}") from None
