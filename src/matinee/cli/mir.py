"""`matinee mir`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from numpy.typing import NDArray

from matinee.cli.common import busy, out, parse, table, write_json
from matinee.errors import ConfigError
from matinee.evaluation.epic100 import mir_chance, mir_metrics, relevancy_matrix
from matinee.evaluation.epic100_csv import read_clips, read_sentences


@dataclass(frozen=True)
class MirCommand:
    """EPIC-KITCHENS-100 multi-instance retrieval: mAP and nDCG of a similarity matrix."""

    similarity: Annotated[Path, tyro.conf.Positional]
    """A .npy file: floats [clips, sentences], in the order of the two tables."""
    videos: Path
    """EPIC_100_retrieval_test.csv: the clips and their classes."""
    sentences: Path
    """EPIC_100_retrieval_test_sentence.csv: the sentences."""
    map: Literal["graded", "binary"] = "graded"
    """graded: as the benchmark's published code computes it; binary: the textbook's."""
    json: str | None = None
    """Write the numbers to this file as well; - for standard output."""


def main(args: Sequence[str]) -> int:
    command = parse(MirCommand, args, "mir")
    clips = read_clips(command.videos)
    sentences = read_sentences(command.sentences, clips)
    similarity = load_similarity(command.similarity, (len(clips), len(sentences)))
    with busy(f"ranking {len(clips)} clips and {len(sentences)} sentences"):
        relevancy = relevancy_matrix(clips.verbs, clips.nouns, sentences.verbs, sentences.nouns)
        metrics = mir_metrics(similarity, relevancy, command.map)
        chance = mir_chance(relevancy, command.map)
    report = {
        "similarity": str(command.similarity),
        "clips": len(clips),
        "sentences": len(sentences),
        "mean_relevancy": float(relevancy.mean(dtype=np.float64)),
        "map": command.map,
        "metrics": metrics,
        "chance": chance,
    }
    write_json(command.json, report)
    if command.json != "-":
        _show(report)
    return 0


def load_similarity(path: Path, shape: tuple[int, int]) -> NDArray[Any]:
    """The matrix in a .npy file, mapped rather than read; pickles are refused.

    Raises:
        ConfigError: no array of floats, or one of another shape.
    """
    try:
        matrix = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError):
        raise ConfigError(
            f"{path} is not a .npy file of numbers: write it with numpy.save(path, array)"
        ) from None
    if matrix.dtype.kind != "f":
        raise ConfigError(f"{path} holds {matrix.dtype}: similarities must be floats")
    if matrix.shape != shape:
        hint = "; transpose it" if matrix.shape == shape[::-1] else ""
        raise ConfigError(
            f"{path} has shape {matrix.shape}, but the tables have {shape[0]} clips and "
            f"{shape[1]} sentences: {shape} was expected{hint}"
        )
    return matrix


def _show(report: dict[str, Any]) -> None:
    out.print(
        f"{report['similarity']}: {report['clips']} clips × {report['sentences']} sentences, "
        f"mean relevancy {report['mean_relevancy']:.4f}, {report['map']} mAP"
    )
    rows = []
    for name in ("map", "ndcg"):
        for direction in ("v2t", "t2v", "average"):
            key = f"{direction}_{name}"
            rows.append([key, report["metrics"][key], report["chance"][key]])
    table(["metric", "value", "chance"], rows)
    for direction, kind in (("v2t", "clips"), ("t2v", "sentences")):
        count = report["metrics"][f"{direction}_without_hit"]
        if count:
            out.print(f"{count} {kind} have no match of relevancy 1 and are not counted")
