"""EK-100's multi-instance retrieval on the samples of a pack: which sentences, how relevant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.errors import ConfigError
from matinee.evaluation.epic100 import MAP, mir_metrics, relevancy_matrix
from matinee.evaluation.epic100_csv import read_narrations
from matinee.pack.reading.selection import SampleTable
from matinee.tasks.vocabulary import split_labels

# Note [Sentences of MIR]
#
# Clips are ranked for sentences and sentences for clips; any number of clips may fit a sentence.
# The benchmark publishes its own list of test sentences, which is not quite the distinct narrations
# of its clips (3842 instead of 3835: some stand there twice, some are written differently). Without
# that list the distinct captions of the clips that were evaluated are the sentences, and figures
# come close to published ones without being comparable to the last digit. `mir_source` says which
# were taken.


@dataclass(frozen=True)
class ClassSets:
    """The verbs and nouns of each row of a pack, numbered; an empty set where it has none."""

    verbs: tuple[frozenset[int], ...]
    nouns: tuple[frozenset[int], ...]

    def known(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the rows have both."""
        return np.array([bool(self.verbs[r] and self.nouns[r]) for r in rows.tolist()], dtype=bool)


@dataclass(frozen=True)
class Sentences:
    """Texts, each with the verbs and nouns of a row of the pack: `rows`, int64 [S]."""

    texts: tuple[str, ...]
    rows: NDArray[np.int64]
    source: str


def read_class_sets(pack: SampleTable) -> ClassSets | None:
    """What the columns `verb` and `noun` hold, several separated by `|`; None without them."""
    if not {"verb", "noun"} <= set(pack.samples.column_names):
        return None
    return ClassSets(*(_numbered(pack.samples.column(n).to_pylist()) for n in ("verb", "noun")))


def _numbered(cells: Sequence[object]) -> tuple[frozenset[int], ...]:
    sets = [split_labels("" if cell is None else str(cell)) for cell in cells]
    place = {name: i for i, name in enumerate(sorted({name for held in sets for name in held}))}
    return tuple(frozenset(place[name] for name in held) for held in sets)


def distinct_captions(
    texts: Sequence[str], rows: NDArray[np.int64], sets: ClassSets
) -> tuple[Sentences, NDArray[np.int64]]:
    """Each text once, with the classes of its first clip that has both, and its place in `texts`.

    Args:
        rows: of the pack, whose clip each text is about.
    """
    first: dict[str, int] = {}
    for place in np.flatnonzero(sets.known(rows)).tolist():
        first.setdefault(texts[place], place)
    places = np.array(list(first.values()), dtype=np.int64)
    return Sentences(tuple(first), rows[places], "distinct captions"), places


def read_official(table: Path, pack: SampleTable, sets: ClassSets | None) -> Sentences:
    """The benchmark's own sentences, with the classes of the samples of the same narration id.

    That is a sample's `narration_id`, or its own id in a pack without such a column.

    Raises:
        AnnotationError: a damaged table.
        ConfigError: a pack without verbs and nouns, an id that no sample has or one without them.
    """
    if sets is None:
        raise ConfigError(
            f"--sentences {table}: {pack.path} has no columns verb and noun, by which retrieved "
            "clips are judged"
        )
    texts = read_narrations(table)
    column = "narration_id" if "narration_id" in pack.samples.column_names else "sample"
    held = pack.samples.column(column).to_pylist()
    place = {name: row for row, name in reversed(list(enumerate(held)))}
    missing = [name for name in texts if name not in place]
    if missing:
        raise ConfigError(
            f"--sentences {table}: {pack.path} has no sample for {len(missing)} of {len(texts)} "
            f"narration ids (column {column!r}), the first is {missing[0]!r}: pack the benchmark's "
            "clips with their column narration_id"
        )
    rows = np.array([place[name] for name in texts], dtype=np.int64)
    known = sets.known(rows)
    if not known.all():
        bare = list(texts)[int((~known).argmax())]
        raise ConfigError(
            f"--sentences {table}: {int((~known).sum())} of {len(texts)} sentences are of samples "
            f"without a verb or a noun in {pack.path}, the first is {bare!r}"
        )
    return Sentences(tuple(texts.values()), rows, table.name)


def mir_of(
    similarity_VS: NDArray[Any], index: NDArray[np.int64], sentences: Sentences, sets: ClassSets
) -> dict[str, Any]:
    """`mir_graded_…` as published and `mir_binary_…` as in textbooks, see Note [Graded mAP].

    Only clips with a verb and a noun take part: `mir_clips` of them, `mir_left_out` without. Also
    `mir_sentences` (how many) and `mir_source` (Note [Sentences of MIR]); without a single clip
    these counts are all there is.

    Args:
        index: rows of the pack of the clips [V].
    """
    known = sets.known(index)
    counts = {
        "mir_clips": int(known.sum()),
        "mir_left_out": int((~known).sum()),
        "mir_sentences": len(sentences.texts),
        "mir_source": sentences.source,
    }
    if not known.any():
        return counts
    clips, of = index[known].tolist(), sentences.rows.tolist()
    relevancy = relevancy_matrix(
        [sets.verbs[row] for row in clips], [sets.nouns[row] for row in clips],
        [sets.verbs[row] for row in of], [sets.nouns[row] for row in of],
    )  # fmt: skip
    similarity = similarity_VS if known.all() else similarity_VS[known]
    kinds: tuple[MAP, ...] = ("graded", "binary")
    return counts | {
        f"mir_{kind}_{name}": value
        for kind in kinds
        for name, value in mir_metrics(similarity, relevancy, kind).items()
    }
