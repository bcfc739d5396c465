"""A pack's clips under other labels, splits and captions: a copy with another table of samples."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def relabelled(pack: Path, out: Path, **columns: list[str | None]) -> Path:
    """Copy `pack` to `out` with these columns, a cell for each of its 18 samples."""
    shutil.copytree(pack, out)
    table = pq.read_table(out / "samples.parquet")
    for name, cells in columns.items():
        array = pa.array(cells, pa.string())
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, array)
        else:
            table = table.append_column(name, array)
    pq.write_table(table, out / "samples.parquet")
    return out
