"""Mutated packs for `fuzz_cases.py`: manifest, parquet tables, shards, any file of the folder."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_cases import EXTREMES, mutate

from matinee.pack.reading.reader import Pack

ODD: list[Any] = [
    None, True, -1, 0, 1e400, 2**80, "", "x", "../../etc/passwd", [], {}, [None], {"a": 1},
    float("nan"), "\ud800", ["a"] * 1000,
]  # fmt: skip
WORDS = ["", "x", "../x", "/etc/passwd", "a.mp4", "\0", "é" * 300, "bt709", "h264", "rawvideo"]


def read_all(folder: Path, rng: np.random.Generator) -> None:
    """Open a pack and read some frames of each sample, as a loader would."""
    pack = Pack(folder)
    for index in range(min(len(pack), 4)):
        info = pack.info(index)
        assert info.num_frames > 0
        frames = rng.integers(0, min(info.num_frames, 1 << 20), 2)
        clip = pack.read(index, frames.tolist(), size=(16, 16), pixels="i420")
        assert clip.shape == (2, 384)


class _Mutated:
    """A copy of a pack in which some files are changed for each case."""

    def __init__(self, folder: Path) -> None:
        self.good = folder / "pack"
        self.bad = folder / f"bad {type(self).__name__}"
        shutil.rmtree(self.bad, ignore_errors=True)
        shutil.copytree(self.good, self.bad)

    def put(self, name: str, data: bytes) -> None:
        """Replace a file by name: an open pack may still have the one before."""
        path = self.bad / name
        aside = path.with_name("aside")
        aside.write_bytes(data)
        aside.replace(path)

    def restore(self, name: str) -> None:
        self.put(name, (self.good / name).read_bytes())

    def names(self, pattern: str) -> list[str]:
        found = sorted(p for p in self.good.rglob(pattern) if p.is_file())
        return [str(path.relative_to(self.good)) for path in found]


class Manifests(_Mutated):
    """pack.json: its bytes, or values of it replaced by others of any kind."""

    def __call__(self, rng: np.random.Generator) -> None:
        data = (self.good / "pack.json").read_bytes()
        if rng.random() < 0.6:
            content = json.loads(data)
            for _ in range(int(rng.integers(1, 4))):
                self.change(content, rng)
            data = json.dumps(content).encode()
        else:
            data = mutate(data, rng)
        self.put("pack.json", data)
        read_all(self.bad, rng)

    def change(self, content: Any, rng: np.random.Generator) -> None:
        while True:
            keys = list(content) if isinstance(content, dict) else list(range(len(content)))
            key = keys[int(rng.integers(len(keys)))]
            inside = content[key]
            if isinstance(inside, dict | list) and inside and rng.random() < 0.7:
                content = inside
                continue
            if rng.random() < 0.2:
                del content[key]
            else:
                content[key] = deepcopy(ODD[int(rng.integers(len(ODD)))])
            return


class ParquetTables(_Mutated):
    """Parquet: bytes changed, or values that fit their type and nothing else."""

    def __call__(self, rng: np.random.Generator) -> None:
        names = self.names("*.parquet")
        name = names[int(rng.integers(len(names)))]
        data = (self.good / name).read_bytes()
        if rng.random() < 0.5:
            data = mutate(data, rng)
        else:
            table = pq.read_table(self.good / name)
            for _ in range(int(rng.integers(1, 3))):
                table = self.change(table, rng)
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink)
            data = sink.getvalue().to_pybytes()
        self.put(name, data)
        try:
            read_all(self.bad, rng)
        finally:
            self.restore(name)

    def change(self, table: pa.Table, rng: np.random.Generator) -> pa.Table:
        if not table.num_columns:
            return table
        column = int(rng.integers(table.num_columns))
        field = table.schema.field(column)
        match int(rng.integers(10)):
            case 0:
                return table.remove_column(column)
            case 1:
                return table.slice(0, int(rng.integers(table.num_rows + 1)))
            case 2:
                return pa.concat_tables([table, table])
            case 3:
                return table.set_column(
                    column, field.name, pa.array([b"x"] * table.num_rows, pa.binary())
                )
        values = table.column(column).to_pylist()
        if not values:
            return table
        row = int(rng.integers(len(values)))
        kind = (pa.types.is_dictionary(field.type) and field.type.value_type) or field.type
        if pa.types.is_integer(kind):
            bits = kind.bit_width
            value: Any = int(rng.choice(EXTREMES))
            values[row] = max(-(2 ** (bits - 1)), min(2 ** (bits - 1) - 1, value))
            if pa.types.is_unsigned_integer(kind):
                values[row] = abs(values[row])
        elif pa.types.is_floating(kind):
            values[row] = float(rng.choice([np.nan, np.inf, -np.inf, -1.0, 1e300, 5e-324]))
        elif pa.types.is_boolean(kind):
            values[row] = not values[row]
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            values[row] = mutate(values[row] or b"x", rng)
        else:
            values[row] = WORDS[int(rng.integers(len(WORDS)))]
        if field.nullable and rng.random() < 0.1:
            values[row] = None
        new = pa.array(values, type=field.type)
        return table.set_column(column, field, new)


class Shards(_Mutated):
    """The tar shards, at their length: members' bytes, their tables, their headers."""

    def __call__(self, rng: np.random.Generator) -> None:
        names = self.names("*.tar")
        name = names[int(rng.integers(len(names)))]
        good = (self.good / name).read_bytes()
        data = mutate(good, rng)[: len(good)]
        self.put(name, data + good[len(data) :])
        try:
            read_all(self.bad, rng)
        finally:
            self.restore(name)


class PackFiles(_Mutated):
    """Any file of the folder, or none of it."""

    def __call__(self, rng: np.random.Generator) -> None:
        names = self.names("*")
        name = names[int(rng.integers(len(names)))]
        if rng.random() < 0.1:
            (self.bad / name).unlink()
        else:
            self.put(name, mutate((self.good / name).read_bytes(), rng))
        try:
            read_all(self.bad, rng)
        finally:
            self.restore(name)
