"""From predictions to the metrics of a kind of labels, and a row for each sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from matinee.errors import ConfigError
from matinee.evaluation.classification import ClassificationResult, top_k
from matinee.evaluation.epic100 import marginalise
from matinee.evaluation.multilabel import multi_label_metrics
from matinee.evaluation.ranks import on_first
from matinee.evaluation.views import ViewScores
from matinee.tasks.config import ClassificationConfig
from matinee.tasks.vocabulary import SEPARATOR, Vocabulary


@dataclass(frozen=True)
class Evaluated:
    """Metrics by name, and predictions: a row a sample (sample, index, label, predicted, …).

    On several ranks all have the metrics, rank 0 alone the predictions.
    """

    metrics: dict[str, Any]
    predictions: list[dict[str, Any]]


def measured_on_first(measure: Callable[[], Evaluated]) -> Evaluated:
    """What rank 0 measures, on every rank: see Note [Shares]. A collective.

    Raises:
        MatineeError: `measure` raised it; then on all ranks.
    """
    found: Evaluated | None = None

    def metrics() -> dict[str, Any]:
        nonlocal found
        found = measure()
        return found.metrics

    shared = on_first(metrics)
    return Evaluated(shared, []) if found is None else found


def evaluate_scores(
    scores: ViewScores, vocabulary: Vocabulary, config: ClassificationConfig
) -> Evaluated:
    """Metrics of single labels, several labels, or pairs of verb and noun.

    Raises:
        ConfigError: a NaN among the probabilities, with the first sample that has one.
    """
    bad = np.asarray(np.isnan(scores.probabilities).any(axis=1))
    if bad.any():
        raise ConfigError(
            f"the network gives NaN for {int(bad.sum())} of {len(bad)} samples, the first is "
            f"{scores.samples[int(bad.argmax())]!r}: look at this sample, or if it is all of them "
            "at the weights: they may have diverged"
        )
    match config.labels:
        case "single":
            return _single(scores, vocabulary)
        case "verb+noun":
            return _verb_noun(scores, vocabulary)
        case "multi":
            return _multi(scores, vocabulary)


def _single(scores: ViewScores, vocabulary: Vocabulary) -> Evaluated:
    result = ClassificationResult(
        classes=vocabulary.classes, index=scores.index, samples=scores.samples,
        labels=scores.targets, probabilities=scores.probabilities, skipped=scores.skipped,
    )  # fmt: skip
    return Evaluated(result.metrics() | {"classes": list(vocabulary.classes)}, result.predictions())


def _verb_noun(scores: ViewScores, vocabulary: Vocabulary) -> Evaluated:
    """Actions count as a whole (top1, top5); verbs and nouns by the sums over their actions.

    The confusion matrix and the accuracy of each class are of verbs.
    """
    verb_of, noun_of = (np.array(p) for p in (vocabulary.verb_of, vocabulary.noun_of))
    verbs, nouns = marginalise(scores.probabilities, verb_of, noun_of)
    actions = _single(scores, vocabulary)
    of_verbs = _single(
        replace(scores, targets=verb_of[scores.targets], probabilities=verbs),
        Vocabulary(vocabulary.verbs),
    )
    noun_labels = noun_of[scores.targets]
    kept = ("top1", "top5", "macro_f1", "weighted_f1", "ece")
    return Evaluated(
        of_verbs.metrics
        | {name: actions.metrics[name] for name in kept}
        | {
            "verb_top1": of_verbs.metrics["top1"],
            "verb_top5": of_verbs.metrics["top5"],
            "noun_top1": top_k(noun_labels, nouns, 1),
            "noun_top5": top_k(noun_labels, nouns, 5),
        },
        actions.predictions,
    )


def _multi(scores: ViewScores, vocabulary: Vocabulary) -> Evaluated:
    best = scores.probabilities.argmax(axis=1)
    right = scores.targets[np.arange(len(best)), best] > 0
    rows = []
    for i, sample in enumerate(scores.samples):
        own = [vocabulary.classes[k] for k in np.flatnonzero(scores.targets[i])]
        rows.append(
            {
                "sample": sample,
                "index": int(scores.index[i]),
                "label": f" {SEPARATOR} ".join(own),
                "predicted": vocabulary.classes[best[i]],
                "probability": float(scores.probabilities[i, best[i]]),
            }
        )
    metrics = multi_label_metrics(scores.targets, scores.probabilities)
    return Evaluated(
        {
            "top1": float(right.mean()), **metrics, "classes": list(vocabulary.classes),
            "samples": len(best), "skipped": len(scores.skipped),
        },
        rows,
    )  # fmt: skip
