"""The parquet tables of a pack: written here, read and checked here."""

from __future__ import annotations

import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from matinee.files import write_whole
from matinee.media.packets import VideoFormat
from matinee.pack.format import CHUNKS, CODECS, FILES
from matinee.pack.reading.table_file import TableFile


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
    samples: pa.Table,
) -> None:
    """Write the four tables of a pack."""
    write_table(out / "files.parquet", pa.Table.from_pylist(files, schema=FILES))
    write_table(out / "chunks.parquet", pa.Table.from_pylist(chunks, schema=CHUNKS))
    write_table(out / "codecs.parquet", pa.Table.from_pylist(codecs, schema=CODECS))
    write_table(out / "samples.parquet", samples)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table, whole or not at all."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    write_whole(path, buffer.getvalue())


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a small table whole and check that it has the columns of `schema`, in their types.

    Raises:
        PackError: missing, damaged, or of another layout.
    """
    table = TableFile(path, schema)
    return pa.table({name: table.column(name) for name in table.column_names})
