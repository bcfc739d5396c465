"""The annotation files of EPIC-KITCHENS-100 that retrieval needs."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matinee.errors import AnnotationError

_LIST = re.compile(r"\[ *[0-9]{1,6}(?: *, *[0-9]{1,6})* *\]")
_CLASS = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True)
class Actions:
    """Clips or sentences with their classes.

    ids: narration ids. texts: narrations. verbs, nouns: class numbers of each, never empty.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    verbs: tuple[frozenset[int], ...]
    nouns: tuple[frozenset[int], ...]

    def __len__(self) -> int:
        return len(self.ids)


def read_clips(table: Path) -> Actions:
    """Rows of `EPIC_100_retrieval_test.csv`, `EPIC_100_validation.csv` or a file like them.

    Raises:
        AnnotationError: with file and line: a missing column, a class that is no number, a list
            that is not one of numbers, an id twice.
    """
    rows = _rows(table, ("narration_id", "narration", "verb_class", "all_noun_classes"))
    return _actions(table, rows, "all_noun_classes")


def read_sentences(table: Path, clips: Actions | None = None) -> Actions:
    """Rows of `EPIC_100_retrieval_test_sentence.csv`, or of the train file.

    The test file holds no classes: a sentence has those of the clip of the same narration id among
    `clips`. (Its texts are what is embedded. Six of them differ from the narration of their clip,
    and 13 of the 3842 are written twice or thrice; so it was published.)

    Raises:
        AnnotationError: as `read_clips`; no classes and no `clips`; an id that is no clip's.
    """
    rows = _rows(table, ("narration_id", "narration"))
    if {"verb_class", "noun_classes"} <= rows[0][1].keys():
        return _actions(table, rows, "noun_classes")
    if clips is None:
        raise AnnotationError(
            f"{table} has no columns verb_class and noun_classes: the file of the clips is needed"
        )
    place = {name: i for i, name in enumerate(clips.ids)}
    ids = _ids(table, rows)
    for (line, _), name in zip(rows, ids, strict=True):
        if name not in place:
            raise AnnotationError(f"{table}, line {line}: no clip has the narration id {name!r}")
    places = [place[name] for name in ids]
    return Actions(
        ids=ids,
        texts=tuple(row["narration"] for _, row in rows),
        verbs=tuple(clips.verbs[i] for i in places),
        nouns=tuple(clips.nouns[i] for i in places),
    )


def read_narrations(table: Path) -> dict[str, str]:
    """Texts by narration id, in the order of the file: any table with those two columns.

    Raises:
        AnnotationError: with file and line: a missing column, an id twice.
    """
    rows = _rows(table, ("narration_id", "narration"))
    return dict(zip(_ids(table, rows), (row["narration"] for _, row in rows), strict=True))


Rows = Sequence[tuple[int, dict[str, str]]]  # line of the file, columns


def _rows(table: Path, needed: Sequence[str]) -> Rows:
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = list(reader.fieldnames or [])
            rows = [(reader.line_num, row) for row in reader]
    except OSError as error:
        raise AnnotationError(f"{table} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise AnnotationError(f"{table} is not a CSV table in UTF-8: {error}") from None
    for name in needed:
        if name not in columns:
            raise AnnotationError(
                f"{table} has no column {name!r}; it has: {', '.join(columns) or 'nothing'}"
            )
    if not rows:
        raise AnnotationError(f"{table} has a header but no rows")
    for line, row in rows:
        if None in row or None in row.values():
            raise AnnotationError(f"{table}, line {line}: {len(columns)} columns were expected")
    return rows


def _ids(table: Path, rows: Rows) -> tuple[str, ...]:
    seen: set[str] = set()
    for line, row in rows:
        if row["narration_id"] in seen:
            raise AnnotationError(
                f"{table}, line {line}: narration id {row['narration_id']!r} stands there twice"
            )
        seen.add(row["narration_id"])
    return tuple(row["narration_id"] for _, row in rows)


def _actions(table: Path, rows: Rows, nouns: str) -> Actions:
    verb_sets, noun_sets = [], []
    for line, row in rows:
        verb, listed = row["verb_class"], row[nouns]
        if not _CLASS.fullmatch(verb):
            raise AnnotationError(f"{table}, line {line}: verb_class {verb[:40]!r} is no number")
        if not _LIST.fullmatch(listed):
            raise AnnotationError(
                f"{table}, line {line}: {nouns} {listed[:40]!r} is not a list such as [13, 3]"
            )
        verb_sets.append(frozenset((int(verb),)))
        noun_sets.append(frozenset(int(number) for number in _CLASS.findall(listed)))
    return Actions(
        ids=_ids(table, rows),
        texts=tuple(row["narration"] for _, row in rows),
        verbs=tuple(verb_sets),
        nouns=tuple(noun_sets),
    )
