"""A CSV table: `path,label[,split,start,end,text,...]`, one row a sample."""

from __future__ import annotations

import csv
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

from matinee.errors import AnnotationError
from matinee.pack.annotations.base import Annotations, Sample, VideoFile, hold_out, video_id

_KNOWN = ("path", "label", "split", "start", "end", "text")


def read_table(table: Path, root: Path, *, val_fraction: float = 0.2) -> Annotations:
    """Rows of a CSV file with a header line; paths are relative to `root`.

    `start` and `end` are seconds or [hh:]mm:ss; further columns travel into the pack as strings.
    Without a split column (or where it is blank in every row) `hold_out` gives the splits.

    Raises:
        AnnotationError: with file and line: no such file, a missing column, a blank path or label,
            a bad time, a split in some rows but not in all.
    """
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            _check_columns(table, list(columns))
            rows = [(reader.line_num, row) for row in reader]
    except FileNotFoundError:
        raise AnnotationError(f"{table}: no such file") from None
    except OSError as error:
        raise AnnotationError(f"{table} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise AnnotationError(f"{table} is not a CSV table in UTF-8: {error}") from None
    if not rows:
        raise AnnotationError(f"{table} has a header but no rows")
    uses: Counter[str] = Counter()
    videos: dict[str, VideoFile] = {}
    samples: list[Sample] = []
    for line, row in rows:
        where = f"{table}, line {line}"
        if None in row or None in row.values():
            raise AnnotationError(f"{where}: {len(columns)} columns were expected")
        sample, video = _sample(where, row, root)
        samples.append(sample)
        videos.setdefault(video.id, video)
        uses[video.id] += 1
    numbered = _number(samples, uses)
    with_split = sum(sample.split is not None for sample in numbered)
    notes: tuple[str, ...] = ()
    if not with_split:
        numbered, note = hold_out(numbered, val_fraction)
        notes = (note,)
    elif with_split < len(numbered):
        line = next(line for line, row in rows if not (row.get("split") or "").strip())
        raise AnnotationError(f"{table}, line {line}: no split, but other rows have one")
    return Annotations(tuple(videos.values()), tuple(numbered), (), notes)


def _check_columns(table: Path, columns: list[str]) -> None:
    has = f"it has: {', '.join(columns) or 'nothing'}"
    if "path" not in columns:
        raise AnnotationError(f"{table} has no column 'path'; {has}")
    if "label" not in columns and "text" not in columns:
        raise AnnotationError(f"{table} has neither a column 'label' nor 'text'; {has}")
    twice = [name for name, count in Counter(columns).items() if count > 1]
    if twice:
        raise AnnotationError(f"{table} has the column {twice[0]!r} twice")
    clash = {"sample", "video", "start_s", "end_s"} & set(columns)
    if clash:
        raise AnnotationError(
            f"{table}: the column name {min(clash)!r} is taken by the pack itself; rename it"
        )


def _sample(where: str, row: dict[str, str], root: Path) -> tuple[Sample, VideoFile]:
    path = row["path"].strip()
    if not path:
        raise AnnotationError(f"{where}: the path is blank")
    if "\0" in path:
        raise AnnotationError(f"{where}: the path contains a NUL character")
    label = (row.get("label") or "").strip() or None
    text = (row.get("text") or "").strip() or None
    if label is None and text is None:
        raise AnnotationError(f"{where}: the label is blank")
    start = _time(where, "start", row.get("start"))
    end = _time(where, "end", row.get("end"))
    if end is not None and end <= (start or 0.0):
        raise AnnotationError(f"{where}: end {end:g} s does not lie after start {start or 0:g} s")
    name = video_id(root / path, root)
    sample = Sample(
        id=name,
        video=name,
        label=label,
        split=(row.get("split") or "").strip() or None,
        start=start,
        end=end,
        text=text,
        extra=tuple((key, value) for key, value in row.items() if key not in _KNOWN),
    )
    return sample, VideoFile(name, root / path)


def _time(where: str, name: str, given: str | None) -> float | None:
    """Seconds from "12.5" or "[hh:]mm:ss[.s]"; None when blank."""
    if given is None or not given.strip():
        return None
    try:
        parts = [float(part) for part in given.strip().split(":")]
        if not 1 <= len(parts) <= 3 or any(not math.isfinite(p) or p < 0 for p in parts):
            raise ValueError
    except ValueError:
        raise AnnotationError(
            f"{where}: {name} {given!r} is not a time in seconds or hh:mm:ss"
        ) from None
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60 + part
    return seconds


def _number(samples: list[Sample], uses: Counter[str]) -> list[Sample]:
    """Sample ids: the video's name, with #0, #1, … where a video has several samples."""
    seen: Counter[str] = Counter()
    numbered = []
    for sample in samples:
        if uses[sample.video] > 1:
            numbered.append(replace(sample, id=f"{sample.video}#{seen[sample.video]}"))
            seen[sample.video] += 1
        else:
            numbered.append(sample)
    return numbered
