"""Classify with a contrastive run by the names of classes, which it was never trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.errors import ConfigError
from matinee.evaluation.classification import ClassificationResult
from matinee.evaluation.embeddings import embed_texts
from matinee.evaluation.zero_shot import (
    VIDEO_TEMPLATES,
    class_embeddings,
    class_probabilities,
    class_scores,
)
from matinee.inference.embed import Progress, autocast_of, clip_vectors
from matinee.inference.load import LoadedRun, load_run
from matinee.inference.reports import write_report
from matinee.pack.open import open_data
from matinee.tasks.contrastive import ContrastiveTask
from matinee.training.setup import choose_splits


@dataclass(frozen=True)
class NamedClasses:
    """Classes and their vectors float64 [K, E]; `cut` of their prompts were too long."""

    classes: tuple[str, ...]
    vectors: NDArray[np.float64]
    temperature: float
    cut: int

    def probabilities(self, clips_NE: NDArray[Any]) -> NDArray[np.float64]:
        """Of each class [N, K], from clips' vectors [N, E] of any length."""
        scores = class_scores(clips_NE, self.vectors)
        return class_probabilities(scores, temperature=self.temperature)


def name_classes(
    run: LoadedRun, classes: Sequence[str], templates: Sequence[str] = VIDEO_TEMPLATES
) -> NamedClasses:
    """Classes as a contrastive run's text tower understands their names.

    Raises:
        ConfigError: a run of another task; no class, a blank one, or one given twice; a template
            without `{}`.
    """
    task = run.task
    if not isinstance(task, ContrastiveTask):
        raise ConfigError(
            f"{run.folder.path} is a run of {task.kind}: classes by name need a contrastive run"
        )
    twice = [name for i, name in enumerate(classes) if name in classes[:i]]
    if twice:
        raise ConfigError(f"class {twice[0]!r} is given twice")
    cut = 0

    def embed_text(prompts: list[str]) -> NDArray[np.float32]:
        nonlocal cut
        vectors, too_long = embed_texts(task, prompts, autocast_of(run))
        cut += too_long
        return vectors

    vectors = class_embeddings(embed_text, [as_words(name) for name in classes], templates)
    return NamedClasses(tuple(classes), vectors, 1 / float(task.model.scale().detach()), cut)


def as_words(label: str) -> str:
    """A label as text: "riding_a_bike" is "riding a bike"."""
    return " ".join(label.replace("_", " ").split())


def zero_shot(
    run: str | Path | LoadedRun,
    *,
    data: str | Path | None = None,
    split: str | None = None,
    templates: Sequence[str] = VIDEO_TEMPLATES,
    views: tuple[int, int] = (1, 1),
    batch_size: int | None = None,
    workers: int | None = None,
    mask_errors: bool = False,
    device: str = "auto",
    on_progress: Progress | None = None,
) -> dict[str, Any]:
    """Metrics of telling the labels of a pack by their names, underscores as spaces.

    Args:
        data: a pack with labels; the run's own when None.
        split: as `Pack.select` takes it; the validation split when None. The classes are those of
            the whole pack.
        templates: prompts a class, each with `{}` for its name.
        mask_errors: skip and count clips that cannot be read, instead of stopping.

    Returns:
        As `evaluate` of a classification run does, with `zero_shot` (True), `templates` and `cut`
        (prompts longer than the context). Also written to
        `<run>/zero-shot-<data>-<split>-<views>[-best].json`.

    Raises:
        ConfigError: no such run, pack or split; a run that is not contrastive; a pack without
            labels.
        ClipError: a clip cannot be read.
    """
    loaded = run if isinstance(run, LoadedRun) else load_run(run, device=device)
    pack = open_data(data if data is not None else loaded.config.data.path)
    if not pack.classes:
        raise ConfigError(f"{pack.path} has no labels to tell")
    if split is None:
        split = choose_splits(pack, loaded.config).val
        if split is None:
            raise ConfigError(
                f"{pack.path} has no val or test split: say which samples with --split"
            )
    held = pack.samples.column("label").to_pylist()
    if not any(held[row] is not None for row in pack.select(split)):
        raise ConfigError(f"{pack.path} has no label in split {split!r}")
    named = name_classes(loaded, pack.classes, templates)
    clips = clip_vectors(
        loaded, pack, split=split, views=views, batch_size=batch_size, workers=workers,
        mask_errors=mask_errors, on_progress=on_progress,
    )  # fmt: skip
    place = {name: i for i, name in enumerate(named.classes)}
    labels = np.array([place.get(held[row], -1) for row in clips.index], dtype=np.int64)
    known = labels >= 0
    if not known.any():
        raise ConfigError(f"{pack.path}: no sample with a label in split {split!r} could be read")
    unlabelled = tuple(s for s, ok in zip(clips.samples, known, strict=True) if not ok)
    result = ClassificationResult(
        classes=named.classes, index=clips.index[known],
        samples=tuple(s for s, ok in zip(clips.samples, known, strict=True) if ok),
        labels=labels[known], probabilities=named.probabilities(clips.vectors[known]),
        skipped=(*clips.skipped, *unlabelled),
    )  # fmt: skip
    report = {
        "run": str(loaded.folder.path),
        "step": loaded.step,
        "notes": list(loaded.notes),
        "task": "classification",
        "zero_shot": True,
        "data": str(pack.path),
        "split": split,
        "views": f"{views[0]}x{views[1]}",
        "templates": list(templates),
        "cut": named.cut,
        **result.metrics(),
        "classes": list(named.classes),
        "predictions": result.predictions(),
    }
    write_report(loaded, ["zero-shot", pack.name, split, f"{views[0]}x{views[1]}"], report)
    return report
