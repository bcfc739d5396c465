"""Reading annotation files: CSV, JSON, lines of text; and what their names say."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from matinee.errors import AnnotationError
from matinee.pack.annotations.base import check_columns
from matinee.pack.annotations.finder import VideoFinder
from matinee.pack.annotations.folders import SPLITS
from matinee.pack.annotations.samples import Samples, hold_out


@dataclass(frozen=True)
class Request:
    """What a reader of one kind is given: files, where the videos are, and the settings.

    `frames_fps`: of folders of frames, None for the default.
    """

    files: tuple[Path, ...]
    videos: VideoFinder
    val_fraction: float = 0.2
    frames_fps: Fraction | None = None

    def only_file(self, kind: str) -> Path:
        """The file of a kind that takes one."""
        if len(self.files) != 1:
            raise AnnotationError(f"--annotations {kind} takes one file, {len(self.files)} given")
        return self.files[0]

    def splits(self) -> list[str | None]:
        """The split of each file by its name; all or none of them have one.

        Raises:
            AnnotationError: some have.
        """
        found = [split_of(file) for file in self.files]
        if any(found) and not all(found):
            unknown = self.files[found.index(None)]
            raise AnnotationError(
                f"{unknown} has neither train, val nor test in its name, but other files have: "
                "rename it"
            )
        return found

    def held_out(self, samples: Samples) -> tuple[Samples, tuple[str, ...]]:
        """Samples with splits: their own, or those of `hold_out` with its note.

        Raises:
            AnnotationError: some have one, others none.
        """
        splits = samples.table.column("split")
        if 0 < splits.null_count < len(samples):
            first = samples[pc.index(splits.is_null(), True).as_py()]
            raise AnnotationError(
                f"{self.files[0]}: the sample {first.id!r} has no split, but others have one: give "
                "one to all or to none (files can have train, val or test in their names)"
            )
        if splits.null_count < len(samples):
            return samples, ()
        done, note = hold_out(samples, self.val_fraction)
        return done, (note,)


def unreadable(file: Path, error: OSError) -> AnnotationError:
    """The error to raise for a file that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return AnnotationError(f"{file}: no such file")
    return AnnotationError(f"{file} cannot be read: {error.strerror}")


def split_of(file: Path) -> str | None:
    """train, val or test by the words in a file's name, or else, whole, in its folder's name."""
    for word in re.findall("[a-z]+", file.stem.lower()):
        for split in ("train", "val", "test"):
            if word.startswith(split):
                return split
    words = re.findall("[a-z]+", file.parent.name.lower())
    found = {SPLITS[word] for word in words if word in SPLITS}
    return found.pop() if len(found) == 1 else None


def text_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers."""
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, line.strip()
    except OSError as error:
        raise unreadable(file, error) from None
    except UnicodeDecodeError as error:
        raise AnnotationError(f"{file} is no text in UTF-8: {error}") from None


def csv_rows(file: Path, needed: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows of a CSV file with a header, each with "FILE, line N" for messages.

    Raises:
        AnnotationError: no such file, no CSV, a column missing, or twice, or called like
            one of the pack, a row of another length, no rows; a line break in a label or
            split, as a quote leaves that is not closed.
    """
    empty = True
    last = 0  # line at which the last row ends
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            reader = csv.DictReader(text, strict=True)
            columns = list(reader.fieldnames or [])
            for name in needed:
                if name not in columns:
                    raise AnnotationError(
                        f"{file} has no column {name!r}; it has: {', '.join(columns) or 'nothing'}"
                    )
            check_columns(columns, str(file))
            last = reader.line_num
            for row in reader:
                last = reader.line_num
                where = f"{file}, line {last}"
                if None in row or None in row.values():
                    raise AnnotationError(f"{where}: {len(columns)} columns were expected")
                for name in ("label", "split"):
                    if len(row.get(name, "").splitlines()) > 1:
                        raise AnnotationError(f"{where}: the {name} holds a line break")
                empty = False
                yield where, row
    except OSError as error:
        raise unreadable(file, error) from None
    except UnicodeDecodeError as error:
        raise AnnotationError(f"{file} is not a CSV table in UTF-8: {error}") from None
    except csv.Error as error:
        raise AnnotationError(f"{file}, line {last + 1}: no row of a CSV table: {error}") from None
    if empty:
        raise AnnotationError(f"{file} has a header but no rows")


def read_json(file: Path) -> Any:
    """The content of a JSON file.

    Raises:
        AnnotationError: no such file, or no JSON.
    """
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        raise unreadable(file, error) from None
    except (ValueError, RecursionError) as error:
        raise AnnotationError(f"{file} is not JSON: {error}") from None


def text_field(where: str, entry: dict[str, Any], name: str) -> str | None:
    """A field of a JSON object as text; None where it is missing or null.

    Raises:
        AnnotationError: neither text nor a whole number.
    """
    value = entry.get(name)
    if value is not None and type(value) not in (str, int):
        raise AnnotationError(
            f"{where}: the {name} is a {type(value).__name__}; a text or whole number was expected"
        )
    return None if value is None else str(value)


def seconds(where: str, name: str, given: str) -> float:
    """Seconds from "12.5" or "[hh:]mm:ss[.s]".

    Raises:
        AnnotationError: neither.
    """
    try:
        if not given.isascii() or "_" in given:  # float() knows more digits than people expect
            raise ValueError
        parts = [float(part) for part in given.strip().split(":")]
        total = 0.0
        for part in parts:
            total = total * 60 + part
        if len(parts) > 3 or min(parts) < 0 or not math.isfinite(total):
            raise ValueError
    except ValueError:
        raise AnnotationError(
            f"{where}: {name} {given[:40]!r} is not a time in seconds or hh:mm:ss"
        ) from None
    return total


def check_span(where: str, start: float | None, end: float | None) -> None:
    """Raise an AnnotationError unless `end` lies after `start`."""
    if end is not None and end <= (start or 0.0):
        raise AnnotationError(f"{where}: end {end:g} s does not lie after start {start or 0:g} s")


def check_path(where: str, path: str) -> str:
    """A path as given, if a file can have it."""
    if not path.strip():
        raise AnnotationError(f"{where}: the path is blank")
    if "\0" in path:
        raise AnnotationError(f"{where}: the path contains a NUL character")
    return path.strip()
