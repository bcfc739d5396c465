"""The samples of a data set, column by column: four million of them fit in memory.

A `Sample` is an object for reading and for writing a few; `Samples` keeps a pyarrow Table in the
layout of a pack's samples.parquet.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matinee.errors import AnnotationError
from matinee.pack.format import SAMPLES

_BATCH = 1 << 14  # rows made into objects at a time


@dataclass(frozen=True, slots=True)
class Sample:
    """One training sample: a span of a video and what is said about it.

    `start`, `end` in seconds, None for the video's own ends; `extra` holds further columns.
    """

    id: str
    video: str
    label: str | None = None
    split: str | None = None
    start: float | None = None
    end: float | None = None
    text: str | None = None
    extra: tuple[tuple[str, str], ...] = ()


class Samples(Sequence[Sample]):
    """Samples as the rows of `table`: columns of `SAMPLES`, then further ones, all strings."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Samples:
        """From objects."""
        if isinstance(samples, Samples):
            return samples
        rows = list(samples)
        names = dict.fromkeys(key for sample in rows for key, _ in sample.extra)
        extras = [dict(sample.extra) for sample in rows] if names else []
        return cls.from_columns(
            [s.video for s in rows],
            ids=[s.id for s in rows],
            label=[s.label for s in rows],
            split=[s.split for s in rows],
            start=[s.start for s in rows],
            end=[s.end for s in rows],
            text=[s.text for s in rows],
            extra={name: [extra.get(name) for extra in extras] for name in names},
        )

    @classmethod
    def from_columns(
        cls,
        video: Sequence[str] | pa.DictionaryArray,
        *,
        ids: Sequence[str] | None = None,
        label: Sequence[str | None] | None = None,
        split: Sequence[str | None] | pa.ChunkedArray | None = None,
        start: Sequence[float | None] | pa.Array | None = None,
        end: Sequence[float | None] | pa.Array | None = None,
        text: Sequence[str | None] | pa.ChunkedArray | None = None,
        extra: Mapping[str, Sequence[str | None]] | None = None,
    ) -> Samples:
        """From a list, or an Arrow array, for each column.

        Without `ids` a sample is called as its video, with #0, #1, … where a video has several.

        Raises:
            AnnotationError: a text that is no Unicode (half a surrogate pair).
        """
        given: dict[str, Any] = {
            "video": video, "sample": ids, "start_s": start, "end_s": end, "split": split,
            "label": label, "text": text, **(extra or {}),
        }  # fmt: skip
        columns: dict[str, pa.ChunkedArray] = {}
        for name, values in given.items():
            kind = SAMPLES.field(name).type if name in SAMPLES.names else pa.string()
            if name == "sample" and values is None:
                columns[name] = _numbered(columns["video"])
            elif isinstance(values, (pa.Array, pa.ChunkedArray)):
                cast = values.cast(kind)
                columns[name] = (
                    cast if isinstance(cast, pa.ChunkedArray) else pa.chunked_array([cast])
                )
            elif values is None:
                columns[name] = pa.chunked_array([pa.nulls(len(video), kind)])
            else:
                columns[name] = _column(name, values, kind)
        further = [pa.field(name, pa.string()) for name in extra or {}]
        schema = pa.schema([*SAMPLES, *further])
        return cls(pa.table({name: columns[name] for name in schema.names}, schema=schema))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @overload
    def __getitem__(self, index: int) -> Sample: ...

    @overload
    def __getitem__(self, index: slice) -> Samples: ...

    def __getitem__(self, index: int | slice) -> Sample | Samples:
        if isinstance(index, slice):
            rows = np.arange(len(self))[index]
            return Samples(self.table.take(pa.array(rows)))
        place = range(len(self))[index]
        return next(iter(Samples(self.table.slice(place, 1))))

    def __iter__(self) -> Iterator[Sample]:
        further = self.table.column_names[len(SAMPLES) :]
        for batch in self.table.to_batches(max_chunksize=_BATCH):
            for row in batch.to_pylist():
                extra = tuple((name, row[name]) for name in further if row[name] is not None)
                yield Sample(
                    row["sample"], row["video"], row["label"], row["split"], row["start_s"],
                    row["end_s"], row["text"], extra,
                )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Samples):
            return bool(self.table.equals(other.table))
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def digest(self) -> str:
        """SHA-256 of what the samples say, however the table is cut into pieces."""
        found = hashlib.sha256(repr(self.table.schema.names).encode())
        for batch in self.table.combine_chunks().to_batches(max_chunksize=_BATCH):
            for column in batch.columns:
                if pa.types.is_floating(column.type):
                    found.update(column.fill_null(np.nan).to_numpy().tobytes())
                    continue
                lengths = pc.binary_length(column).fill_null(-1).to_numpy()
                found.update(lengths.astype(np.int64).tobytes())
                content = column.buffers()[2]
                if content is not None:
                    edges = np.frombuffer(column.buffers()[1], np.int32)
                    first, last = edges[column.offset], edges[column.offset + len(column)]
                    found.update(memoryview(content)[first:last])
        return found.hexdigest()


def _column(name: str, values: Sequence[Any], kind: pa.DataType) -> pa.ChunkedArray:
    try:
        made = pa.array(values, kind)  # in several pieces beyond 2 GiB
    except UnicodeEncodeError as error:
        raise AnnotationError(
            f"the column {name!r} holds {error.object[:60]!r}, which is no Unicode"
        ) from None
    return made if isinstance(made, pa.ChunkedArray) else pa.chunked_array([made], kind)


def _numbered(videos: pa.ChunkedArray) -> pa.ChunkedArray:
    """Sample ids: the video's name, with #0, #1, … where a video has several samples."""
    coded = videos.dictionary_encode().combine_chunks()
    codes = coded.indices.to_numpy()
    uses = np.bincount(codes, minlength=len(coded.dictionary))
    order = np.argsort(codes, kind="stable")
    firsts = np.cumsum(uses) - uses
    number = np.empty(len(codes), np.int64)
    number[order] = np.arange(len(codes)) - np.repeat(firsts, uses)
    counted = pc.binary_join_element_wise(videos, pa.array(number).cast(pa.string()), "#")
    return pc.if_else(pa.array(uses[codes] > 1), counted, videos)


def hold_out(samples: Iterable[Sample], fraction: float) -> tuple[Samples, str]:
    """Give samples without a split one: the last videos of each class, by name, become "val".

    Whole videos are held out, and neighbours by name stay together, because cuts of one recording
    usually follow one another. Returns the samples and a sentence about what was done.
    """
    table = Samples.of(samples).table
    pairs = table.select(["label", "video"]).group_by(["label", "video"]).aggregate([])
    videos: dict[str, set[str]] = defaultdict(set)
    for label, video in zip(
        *(pairs.column(n).to_pylist() for n in ("label", "video")), strict=True
    ):
        videos[label or ""].add(video)
    held: set[str] = set()
    for names in map(sorted, videos.values()):
        count = round(len(names) * fraction)
        held.update(names[len(names) - count :] if count else [])
    is_held = pc.is_in(table.column("video"), pa.array(sorted(held), pa.string()))
    split = pc.if_else(is_held, "val", "train").cast(pa.string())
    done = table.set_column(SAMPLES.get_field_index("split"), SAMPLES.field("split"), split)
    note = (
        f"no splits given: the last {fraction:.0%} of each class's videos, by name, are held out "
        f"as 'val' ({len(held)} of {pc.count_distinct(table.column('video')).as_py()}); "
        "--val-fraction 0 keeps all for training"
    )
    return Samples(done), note
