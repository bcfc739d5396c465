"""What the metrics of an evaluation are called on a page, how they are written, in which order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matinee.measure.draw.formats import percent
from matinee.tasks.classification import ClassificationTask
from matinee.tasks.contrastive import ContrastiveTask
from matinee.tasks.masked import MaskedTask

KINDS = (ClassificationTask.kind, ContrastiveTask.kind, MaskedTask.kind)
HEADLINES = {task.kind: task.headline for task in (ClassificationTask, ContrastiveTask, MaskedTask)}


@dataclass(frozen=True)
class Metric:
    """`group`: metrics that stand together in a table."""

    key: str
    name: str
    group: str
    write: Callable[[float], str]


def _score(value: float) -> str:
    return f"{value:.3f}"


def _loss(value: float) -> str:
    return f"{value:.4f}"


def _rank(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def _count(value: float) -> str:
    return f"{round(value):,}"


_DIRECTIONS = {"t2v": "text → video", "v2t": "video → text"}
_AVERAGED = {"average": "average", **_DIRECTIONS}

METRICS = (
    Metric("top1", "top-1", "class", percent),
    Metric("top5", "top-5", "class", percent),
    Metric("verb_top1", "verb top-1", "class", percent),
    Metric("verb_top5", "verb top-5", "class", percent),
    Metric("noun_top1", "noun top-1", "class", percent),
    Metric("noun_top5", "noun top-5", "class", percent),
    Metric("macro_f1", "macro F1", "class", _score),
    Metric("weighted_f1", "weighted F1", "class", _score),
    Metric("map_macro", "mAP, mean over classes", "class", _score),
    Metric("map_micro", "mAP, all pairs at once", "class", _score),
    Metric("ece", "calibration error (ECE)", "class", _score),
    *(
        Metric(f"{short}_{key}", f"{name} {told}", short, write)
        for short, name in _DIRECTIONS.items()
        for key, told, write in (
            ("r1", "R@1", percent),
            ("r5", "R@5", percent),
            ("r10", "R@10", percent),
            ("median_rank", "median rank", _rank),
        )
    ),
    # nDCG has nothing to do with the kind of mAP: the graded one stands for both.
    *(
        Metric(f"mir_{key.format(short)}", f"MIR {told}, {name}", f"mir {told}", _score)
        for key, told in (
            ("graded_{}_map", "mAP (graded)"),
            ("binary_{}_map", "mAP (binary)"),
            ("graded_{}_ndcg", "nDCG"),
        )
        for short, name in _AVERAGED.items()
    ),
    Metric("loss", "reconstruction loss", "masked", _loss),
    Metric("captions", "captions", "counts", _count),
    Metric("cut", "captions cut to the context", "counts", _count),
)

# Curves of validation: the headline of each kind of task.
HEADINGS = {
    "top1": ("Validation top-1", True),
    "t2v_r1": ("Validation R@1, text → video", True),
    "loss": ("Validation loss", False),
}
