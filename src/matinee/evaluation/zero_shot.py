"""Classes from their names: a network that was never trained on them tells them by text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.errors import ConfigError
from matinee.evaluation.arrays import unit_rows

VIDEO_TEMPLATES = (
    "{}",
    "a short clip of {}",
    "a recording in which someone is {}",
    "someone is {} on camera",
    "footage that shows {}",
    "this is what {} looks like",
    "the action is {}",
)
"""Prompts for names of actions such as "riding a bike"."""


def class_embeddings(
    embed_text: Callable[[list[str]], NDArray[Any]],
    classes: Sequence[str],
    templates: Sequence[str] = VIDEO_TEMPLATES,
) -> NDArray[np.float64]:
    """Unit vectors [K, E]: the mean of a class's normalised prompts, normalised again.

    Args:
        embed_text: texts to their embeddings [n, E], of any length; called once a class.
        templates: each with one or more `{}`, where the class's name goes.

    Raises:
        ConfigError: no class, no template, a template without `{}`, a blank class; embeddings of
            another shape, or zero or not finite.
    Source: CLIP, arXiv 2103.00020, §3.1.4.
    """
    if not classes or not templates:
        raise ConfigError("zero-shot classification needs at least one class and one template")
    for template in templates:
        if "{}" not in template:
            raise ConfigError(f"template {template!r} has no {{}} where the class's name goes")
    for name in classes:
        if not name.strip():
            raise ConfigError(f"class {name!r} is blank: there is nothing to embed")
    rows = []
    for name in classes:
        # Not str.format: braces in a name or template are text.
        prompts = [template.replace("{}", name) for template in templates]
        embedded = np.asarray(embed_text(prompts))
        if embedded.ndim != 2 or len(embedded) != len(prompts):
            raise ConfigError(
                f"the text encoder gave shape {embedded.shape} for {len(prompts)} texts: "
                "[texts, width] was expected"
            )
        rows.append(unit_rows(unit_rows(embedded).mean(axis=0, keepdims=True))[0])
    return np.stack(rows)


def class_scores(video_NE: NDArray[Any], classes_KE: NDArray[Any]) -> NDArray[np.float64]:
    """Cosine similarity [N, K] of videos and classes; neither needs to be normalised.

    Raises:
        ConfigError: widths that differ; an embedding that is zero or not finite.
    """
    if video_NE.ndim != 2 or classes_KE.ndim != 2 or video_NE.shape[1] != classes_KE.shape[1]:
        raise ConfigError(
            f"videos of shape {video_NE.shape} and classes of shape {classes_KE.shape}: "
            "[videos, width] and [classes, width] of one width were expected"
        )
    cosine: NDArray[np.float64] = unit_rows(video_NE) @ unit_rows(classes_KE).T
    return cosine


def class_probabilities(scores_NK: NDArray[Any], *, temperature: float) -> NDArray[np.float64]:
    """Softmax of scores [N, K] / temperature; CLIP's learned temperature is 0.01.

    Raises:
        ConfigError: a temperature that is not above zero.
    """
    if not temperature > 0:
        raise ConfigError(f"temperature {temperature}: must be above 0")
    scaled = scores_NK.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    probabilities: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return probabilities
