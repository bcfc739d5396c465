"""Class embeddings and scores against torch, and a text encoder made of letters."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from matinee.errors import ConfigError
from matinee.evaluation.zero_shot import (
    VIDEO_TEMPLATES,
    class_embeddings,
    class_probabilities,
    class_scores,
)


def letters(texts):
    """Counts of a … z, space and braces: a text encoder one can check by hand."""
    alphabet = "abcdefghijklmnopqrstuvwxyz {}"
    return np.array([[text.count(c) for c in alphabet] for text in texts], dtype=np.float32)


def test_embeddings_are_the_normalised_mean_of_normalised_prompts():
    """In torch; prompts of different lengths weigh alike."""
    classes, templates = ("bend", "wave hands"), ("{}", "a clip of {}", "{} and {} again")
    found = class_embeddings(letters, classes, templates)
    for k, name in enumerate(classes):
        prompts = [name, f"a clip of {name}", f"{name} and {name} again"]
        embedded = F.normalize(torch.from_numpy(letters(prompts)).double(), dim=1)
        wanted = F.normalize(embedded.mean(dim=0), dim=0)
        np.testing.assert_allclose(found[k], wanted.numpy(), rtol=1e-12)


def test_braces_in_names_are_text():
    """No format string is made of what a user typed."""
    found = class_embeddings(letters, ("{0.__class__}",), ("see {}",))
    np.testing.assert_allclose(found, F.normalize(torch.tensor(letters(["see {0.__class__}"]))))


def test_own_templates_tell_classes_apart():
    """Each class is nearest to a prompt that was none of the templates; they all have a place."""
    classes = ("bending down", "jumping jacks", "waving one hand", "swimming")
    embeddings = class_embeddings(letters, classes)
    assert len(set(VIDEO_TEMPLATES)) == len(VIDEO_TEMPLATES)
    assert all(template.count("{}") == 1 for template in VIDEO_TEMPLATES)
    videos = letters([f"look {name}" for name in classes])
    assert class_scores(videos, embeddings).argmax(axis=1).tolist() == [0, 1, 2, 3]


def test_scores_and_probabilities_equal_torch():
    """Cosine similarity and its softmax, far from overflow at CLIP's temperature."""
    rng = np.random.default_rng(0)
    videos, classes = rng.standard_normal((6, 16)), rng.standard_normal((4, 16))
    wanted = F.cosine_similarity(torch.from_numpy(videos)[:, None], torch.from_numpy(classes), -1)
    scores = class_scores(videos, classes)
    np.testing.assert_allclose(scores, wanted.numpy(), rtol=1e-9)
    for temperature in (0.01, 1e-5):
        np.testing.assert_allclose(
            class_probabilities(scores, temperature=temperature),
            (wanted / temperature).softmax(dim=1).numpy(), rtol=1e-6, atol=1e-300,
        )  # fmt: skip


def test_what_cannot_be_prompted_or_compared_is_refused():
    """One line each."""
    with pytest.raises(ConfigError, match=r"template 'a clip' has no \{\}"):
        class_embeddings(letters, ("bend",), ("{}", "a clip"))
    with pytest.raises(ConfigError, match="class ' ' is blank"):
        class_embeddings(letters, ("bend", " "))
    for classes, templates in (((), ("{}",)), (("bend",), ())):
        with pytest.raises(ConfigError, match="at least one class and one template"):
            class_embeddings(letters, classes, templates)
    with pytest.raises(ConfigError, match=r"shape \(29,\) for 1 texts"):
        class_embeddings(lambda texts: letters(texts)[0], ("bend",), ("{}",))
    with pytest.raises(ConfigError, match="zero or not finite"):
        class_embeddings(lambda texts: np.zeros((len(texts), 4)), ("bend",), ("{}",))
    with pytest.raises(ConfigError, match="of one width"):
        class_scores(np.ones((2, 3)), np.ones((2, 4)))
    with pytest.raises(ConfigError, match="must be above 0"):
        class_probabilities(np.ones((1, 2)), temperature=0)
