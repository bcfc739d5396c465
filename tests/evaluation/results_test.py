"""Metrics of each kind of labels against scikit-learn and loops."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn import metrics as reference

from matinee.errors import ConfigError
from matinee.evaluation.results import evaluate_scores
from matinee.evaluation.views import ViewScores
from matinee.tasks.config import ClassificationConfig
from matinee.tasks.vocabulary import Vocabulary

SAMPLES = 40
ACTIONS = Vocabulary(
    classes=("cut egg", "cut ham", "put egg", "put pan", "take egg", "take ham", "take pan"),
    verbs=("cut", "put", "take"),
    nouns=("egg", "ham", "pan"),
    verb_of=(0, 0, 1, 1, 2, 2, 2),
    noun_of=(0, 1, 0, 2, 0, 1, 2),
)


def scores(targets, probabilities) -> ViewScores:
    return ViewScores(
        index=np.arange(SAMPLES) * 2,
        samples=tuple(f"clip {i}" for i in range(SAMPLES)),
        targets=targets,
        probabilities=probabilities,
        skipped=("gone", "bare"),
    )


@pytest.fixture(scope="module")
def single():
    """Seven classes, the fourth of which never occurs."""
    rng = np.random.default_rng(0)
    targets = rng.choice([0, 1, 2, 4, 5, 6], SAMPLES)
    logits = rng.normal(size=(SAMPLES, 7)) + 1.5 * np.eye(7)[targets]
    return scores(targets, np.exp(logits) / np.exp(logits).sum(1, keepdims=True))


def test_single_labels(single):
    found = evaluate_scores(single, Vocabulary(ACTIONS.classes), ClassificationConfig())
    truth, predicted = single.targets, single.probabilities.argmax(1)
    m = found.metrics
    assert m["top1"] == pytest.approx(reference.accuracy_score(truth, predicted))
    top5 = reference.top_k_accuracy_score(truth, single.probabilities, k=5, labels=range(7))
    assert m["top5"] == pytest.approx(top5)
    for kind in ("macro", "weighted"):
        wanted = reference.f1_score(truth, predicted, average=kind, zero_division=0)
        assert m[f"{kind}_f1"] == pytest.approx(wanted)
    confusion = reference.confusion_matrix(truth, predicted, labels=range(7))
    assert m["confusion"] == confusion.tolist()
    assert m["per_class"]["put pan"] is None and m["classes"] == list(ACTIONS.classes)
    recalls = reference.recall_score(truth, predicted, average=None, labels=[0, 1, 2, 4, 5, 6])
    held = [value for value in m["per_class"].values() if value is not None]
    assert held == pytest.approx(recalls.tolist())
    assert (m["samples"], m["skipped"]) == (SAMPLES, 2)
    row = found.predictions[3]
    assert row == {
        "sample": "clip 3", "index": 6, "label": ACTIONS.classes[truth[3]],
        "predicted": ACTIONS.classes[predicted[3]],
        "probability": pytest.approx(single.probabilities[3].max()),
    }  # fmt: skip


def test_verbs_and_nouns_get_the_sums_over_their_actions(single):
    config = ClassificationConfig(labels="verb+noun")
    found = evaluate_scores(single, ACTIONS, config)
    m, p = found.metrics, single.probabilities
    for part, of, names in (
        ("verb", ACTIONS.verb_of, ACTIONS.verbs), ("noun", ACTIONS.noun_of, ACTIONS.nouns),
    ):  # fmt: skip
        right = 0
        for i in range(SAMPLES):
            sums = [sum(p[i, a] for a in range(7) if of[a] == k) for k in range(len(names))]
            right += sums.index(max(sums)) == of[single.targets[i]]
        assert m[f"{part}_top1"] == pytest.approx(right / SAMPLES)
        assert m[f"{part}_top5"] == 1.0  # of three
    actions = evaluate_scores(single, Vocabulary(ACTIONS.classes), ClassificationConfig())
    for name in ("top1", "top5", "macro_f1", "weighted_f1", "ece"):
        assert m[name] == actions.metrics[name]
    assert m["classes"] == list(ACTIONS.verbs) and np.array(m["confusion"]).shape == (3, 3)
    assert np.trace(m["confusion"]) == pytest.approx(m["verb_top1"] * SAMPLES)
    assert found.predictions == actions.predictions
    assert 0 < m["top1"] < m["verb_top1"] < 1


def test_several_labels():
    rng = np.random.default_rng(1)
    targets = (rng.random((SAMPLES, 5)) < 0.4).astype(np.float32)
    targets[:, 3] = 0  # never occurs
    targets[~targets.any(1), 0] = 1
    probabilities = np.clip(0.3 * targets + 0.7 * rng.random((SAMPLES, 5)), 0, 1)
    vocabulary = Vocabulary(tuple("abcde"))
    given = scores(targets, probabilities)
    found = evaluate_scores(given, vocabulary, ClassificationConfig(labels="multi"))
    m, held = found.metrics, [0, 1, 2, 4]
    macro = reference.average_precision_score(targets[:, held], probabilities[:, held])
    micro = reference.average_precision_score(targets, probabilities, average="micro")
    assert m["map_macro"] == pytest.approx(macro) and m["map_micro"] == pytest.approx(micro)
    assert m["class_ap"][3] is None
    best = probabilities.argmax(1)
    assert m["top1"] == pytest.approx(np.mean([targets[i, k] for i, k in enumerate(best)]))
    assert (m["samples"], m["skipped"], m["classes"]) == (SAMPLES, 2, list("abcde"))
    for i, row in enumerate(found.predictions):
        assert row["label"] == " | ".join("abcde"[k] for k in range(5) if targets[i, k])
        assert row["predicted"] == "abcde"[best[i]] and row["index"] == 2 * i
        assert row["probability"] == pytest.approx(probabilities[i].max())


@pytest.mark.parametrize("labels", ["single", "verb+noun", "multi"])
def test_nan_is_refused_with_the_sample_that_has_it(single, labels):
    """It would count as the most probable class, or as none."""
    probabilities = single.probabilities.copy()
    probabilities[[7, 9], 2] = np.nan
    targets = np.eye(7)[single.targets] if labels == "multi" else single.targets
    with pytest.raises(ConfigError, match="NaN for 2 of 40 samples, the first is 'clip 7'"):
        evaluate_scores(
            replace(single, targets=targets, probabilities=probabilities), ACTIONS,
            ClassificationConfig(labels=labels),
        )  # fmt: skip
