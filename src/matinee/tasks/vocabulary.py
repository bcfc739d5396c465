"""The classes of a data set, and the target of each of its rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.errors import ConfigError
from matinee.tasks.config import ClassificationConfig

SEPARATOR = "|"


@dataclass(frozen=True)
class Vocabulary:
    """Classes in the order of a network's outputs.

    Of pairs of verb and noun, `verb_of` and `noun_of` give each class's place in `verbs` and
    `nouns`.
    """

    classes: tuple[str, ...]
    verbs: tuple[str, ...] = ()
    nouns: tuple[str, ...] = ()
    verb_of: tuple[int, ...] = ()
    noun_of: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {name: list(value) for name, value in asdict(self).items()}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Vocabulary:
        return Vocabulary(**{name: tuple(value) for name, value in values.items()})


def read_vocabulary(table: Any, config: ClassificationConfig) -> Vocabulary:
    """The classes in a table of samples (pyarrow), in alphabetical order.

    Raises:
        ConfigError: verb+noun asked for, and no such columns, or two pairs that read alike.
    """
    if config.labels == "verb+noun":
        ordered = sorted({pair for pair in _pairs(table) if pair is not None})
        verbs = tuple(sorted({verb for verb, _ in ordered}))
        nouns = tuple(sorted({noun for _, noun in ordered}))
        classes = tuple(f"{verb} {noun}" for verb, noun in ordered)
        twice = [name for name, count in Counter(classes).items() if count > 1]
        if twice:
            raise ConfigError(
                f"{twice[0]!r} is more than one pair of verb and noun: write spaces within a verb "
                "or noun as hyphens"
            )
        return Vocabulary(
            classes=classes,
            verbs=verbs,
            nouns=nouns,
            verb_of=tuple(verbs.index(verb) for verb, _ in ordered),
            noun_of=tuple(nouns.index(noun) for _, noun in ordered),
        )
    held = [label for label in table.column("label").to_pylist() if label is not None]
    if config.labels == "multi":
        held = [name for label in held for name in split_labels(label)]
    return Vocabulary(tuple(sorted(set(held))))


def make_targets(
    table: Any, config: ClassificationConfig, vocabulary: Vocabulary, rows: NDArray[np.int64]
) -> NDArray[np.int64] | NDArray[np.float32]:
    """Targets of a table with an entry for each of its rows: class indices int64 [N] (-1 without a
    label and outside `rows`), or for several labels float32 [N, K] of zeros and ones.

    Raises:
        ConfigError: a label in `rows` that is not in the vocabulary.
    """
    place = {name: i for i, name in enumerate(vocabulary.classes)}
    labels = table.column("label").to_pylist()
    if config.labels == "multi":
        hot = np.zeros((table.num_rows, len(place)), dtype=np.float32)
        for row in rows.tolist():
            for name in split_labels(labels[row] or ""):
                hot[row, _place(name, place)] = 1
        return hot
    if config.labels == "verb+noun":
        labels = [None if pair is None else " ".join(pair) for pair in _pairs(table)]
    targets = np.full(table.num_rows, -1, dtype=np.int64)
    for row in rows.tolist():
        if labels[row] is not None:
            targets[row] = _place(labels[row], place)
    return targets


def make_sets(table: Any) -> tuple[Vocabulary, NDArray[np.float32]]:
    """The verbs and nouns of a table, and those of each of its rows: float32 [N, V + M] of zeros
    and ones, verbs first. A cell may hold several.

    Raises:
        ConfigError: no such columns.
    """
    names, parts = [], []
    for cells in _verbs_and_nouns(table):
        held = [split_labels(cell) for cell in cells]
        known = tuple(sorted({name for own in held for name in own}))
        place = {name: i for i, name in enumerate(known)}
        hot = np.zeros((len(held), len(known)), dtype=np.float32)
        for row, own in enumerate(held):
            hot[row, [place[name] for name in own]] = 1
        names.append(known)
        parts.append(hot)
    return Vocabulary((), verbs=names[0], nouns=names[1]), np.concatenate(parts, axis=1)


def split_labels(label: str) -> list[str]:
    """The labels in one cell: "run | jump" holds two."""
    return [name.strip() for name in label.split(SEPARATOR) if name.strip()]


def _place(name: str, place: dict[str, int]) -> int:
    if name not in place:
        some = ", ".join(list(place)[:5])
        raise ConfigError(
            f"label {name!r} is not among the {len(place)} known classes: {some}"
            f"{' …' if len(place) > 5 else ''}"
        )
    return place[name]


def _pairs(table: Any) -> list[tuple[str, str] | None]:
    """Verb and noun of each row, None where either is blank."""
    return [pair if all(pair) else None for pair in zip(*_verbs_and_nouns(table), strict=True)]


def _verbs_and_nouns(table: Any) -> tuple[list[str], list[str]]:
    """The cells of both columns, "" where there is nothing."""
    missing = {"verb", "noun"} - set(table.column_names)
    if missing:
        raise ConfigError(
            f"verbs and nouns are in columns of these names; {min(missing)!r} is not among "
            f"{', '.join(table.column_names)}: add it to the table that is packed"
        )
    verbs, nouns = (
        ["" if cell is None else str(cell).strip() for cell in table.column(name).to_pylist()]
        for name in ("verb", "noun")
    )
    return verbs, nouns
