"""A CSV table: `path,label[,split,start,end,text,...]`, one row a sample."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from matinee.errors import AnnotationError
from matinee.pack.annotations.base import Annotations, VideoFile, video_id
from matinee.pack.annotations.files import check_path, check_span, csv_rows, seconds
from matinee.pack.annotations.samples import Samples, hold_out

_KNOWN = ("path", "label", "split", "start", "end", "text")


def read_table(table: Path, root: Path, *, val_fraction: float = 0.2) -> Annotations:
    """Rows of a CSV file with a header line; paths are relative to `root`.

    `start` and `end` are seconds or [hh:]mm:ss; further columns travel into the pack as strings.
    Without a split column (or where it is blank in every row) `hold_out` gives the splits.

    Raises:
        AnnotationError: with file and line: no such file, a missing column, a blank path or label,
            a bad time, a split in some rows but not in all.
    """
    columns: dict[str, list[str | None]] = {}
    names: list[str] = []
    starts: list[float | None] = []
    ends: list[float | None] = []
    videos: dict[str, VideoFile] = {}
    extra: dict[str, list[str | None]] = defaultdict(list)
    unsplit = ""
    for where, row in csv_rows(table, ("path",)):
        if not columns:
            _check_header(table, list(row))
            columns = {name: [] for name in ("label", "split", "text")}
        path = check_path(where, row["path"])
        cells = {name: row.get(name, "").strip() or None for name in _KNOWN}
        if cells["label"] is None and cells["text"] is None:
            raise AnnotationError(f"{where}: the label is blank")
        start, end = (
            None if cells[name] is None else seconds(where, name, row[name])
            for name in ("start", "end")
        )
        check_span(where, start, end)
        if cells["split"] is None:
            unsplit = unsplit or where
        name = video_id(root / path, root)
        videos.setdefault(name, VideoFile(name, root / path))
        names.append(name)
        for kind in ("label", "split", "text"):
            columns[kind].append(cells[kind])
        starts.append(start)
        ends.append(end)
        for name in row.keys() - set(_KNOWN):
            extra[name].append(row[name])
    ordered = {name: extra[name] for name in row if name in extra}
    samples = Samples.from_columns(
        names, label=columns["label"],
        split=columns["split"], text=columns["text"], extra=ordered, start=starts, end=ends,
    )  # fmt: skip
    if not any(columns["split"]):
        samples, note = hold_out(samples, val_fraction)
        return Annotations(tuple(videos.values()), samples, notes=(note,))
    if unsplit:
        raise AnnotationError(f"{unsplit}: no split, but other rows have one")
    return Annotations(tuple(videos.values()), samples)


def _check_header(table: Path, columns: list[str]) -> None:
    if "label" not in columns and "text" not in columns:
        raise AnnotationError(
            f"{table} has neither a column 'label' nor 'text'; it has: {', '.join(columns)}"
        )
