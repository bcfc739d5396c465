"""Examples of retrieval: captions, the clip that each describes, and what was found instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matinee.data.sampling import uniform_segments
from matinee.measure.report.rundata import RunData
from matinee.measure.report.strips import Strip, open_samples, read_strip


@dataclass(frozen=True)
class Place:
    """Where a run ranked a caption's own clip, among `candidates`; None if it was not evaluated on
    it.
    """

    run: str
    rank: int | None
    candidates: int


@dataclass(frozen=True)
class Retrieval:
    """A caption to show: its own clip, and the nearest one where that is another."""

    text: str
    own: Strip
    nearest: Strip | None
    places: tuple[Place, ...]


def choose_captions(rows: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Up to `count` rows, spread evenly over the table: half of them wrong (rank above 1), as far
    as there are so many of either kind; wrong and right ones in turn.
    """
    wrong = [row for row in rows if row["rank"] > 1]
    right = [row for row in rows if row["rank"] == 1]
    half = (count + 1) // 2
    wrong = _spread(wrong, max(half, count - len(right)))
    right = _spread(right, count - len(wrong))
    pairs = [(2 * i, row) for i, row in enumerate(wrong)]
    pairs += [(2 * i + 1, row) for i, row in enumerate(right)]
    return [row for _, row in sorted(pairs, key=lambda pair: pair[0])]


def find_retrievals(runs: Sequence[RunData], *, count: int) -> tuple[list[Retrieval], str]:
    """Captions that the last run was evaluated on, and a remark if there are none."""
    last = runs[-1]
    rows = last.scores.predictions if last.scores else ()
    if not rows:
        return [], (
            f"No examples: {last.name} was not evaluated, and a validation during training keeps "
            "no ranks. An evaluation does (eval-*.json)."
        )
    pack, remark = open_samples(last, rows)
    if pack is None:
        return [], remark
    index_of = {row["sample"]: row["index"] for row in rows}
    said = [(run, _ranks(run)) for run in runs]
    shown = []
    for row in choose_captions(rows, count):
        nearest = index_of[row["nearest"]] if row["nearest"] != row["sample"] else None
        key = (row["sample"], row["text"])
        shown.append(
            Retrieval(
                text=row["text"],
                own=read_strip(pack, row["index"]),
                nearest=None if nearest is None else read_strip(pack, nearest),
                places=tuple(
                    Place(run.name, ranks.get(key), run.scores.samples if run.scores else 0)
                    for run, ranks in said
                ),
            )
        )
    return shown, ""


def _ranks(run: RunData) -> dict[tuple[str, str], int]:
    rows = run.scores.predictions if run.scores else ()
    return {(row["sample"], row["text"]): row["rank"] for row in rows}


def _spread(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    if len(rows) <= count or not count:
        return rows[:count]
    return [rows[i] for i in uniform_segments(len(rows), count)]
