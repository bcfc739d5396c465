"""Classify video files that were never packed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from matinee.data.loader import ClipLoader
from matinee.errors import ConfigError, MatineeError, MediaError
from matinee.inference.load import LoadedRun, load_run
from matinee.media.probe import probe
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.index import index_videos, needs_normalising
from matinee.pack.profiles import make_profile
from matinee.pack.reader import Pack
from matinee.pack.writer import write_pack
from matinee.tasks.classification import ClassificationTask
from matinee.training.precision import autocast, pick_precision


def predict(
    run: str | Path | LoadedRun,
    files: Sequence[str | Path],
    *,
    views: tuple[int, int] = (3, 1),
    top: int = 5,
    device: str = "auto",
    say: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """The most probable classes of each file.

    A file is indexed in place, so only the frames of its views are decoded; one that needs to be
    normalised first (turned, anamorphic, interlaced, unevenly spaced) is packed to a temporary
    folder, which `say` is told.

    Returns:
        A row a file: file, classes (list of {label, probability}, best first), or file and error.

    Raises:
        ConfigError: no such run, or no files.
    """
    if not files:
        raise ConfigError("no files to predict")
    loaded = run if isinstance(run, LoadedRun) else load_run(run, device=device)
    if not isinstance(loaded.task, ClassificationTask):
        raise ConfigError(
            f"{loaded.folder.path} is a run of {loaded.task.kind}: predict names classes and needs "
            "a run of classification"
        )
    return [_predict_one(loaded, Path(file), views, top, say or (lambda _: None)) for file in files]


def _predict_one(
    run: LoadedRun, file: Path, views: tuple[int, int], top: int, say: Callable[[str], None]
) -> dict[str, Any]:
    one = Annotations((VideoFile(file.name, file),), (Sample(file.name, file.name),))
    with tempfile.TemporaryDirectory(prefix="matinee-") as folder:
        place = Path(folder) / "pack"
        try:
            if needs := needs_normalising(probe(file)):
                say(f"{file} must be {needs} first: packing a normalised copy")
                write_pack(place, one, make_profile(), workers=1)
            else:
                index_videos(place, one)
            probabilities = _probabilities(run, Pack(place), views)
        except OSError as error:
            return {"file": str(file), "error": f"{file}: {error.strerror}"}
        except MediaError as error:
            return {"file": str(file), "error": f"{file} {error}"}
        except MatineeError as error:
            return {"file": str(file), "error": str(error).split("refusal: ")[-1]}
    best = np.argsort(-probabilities, kind="stable")[:top]
    return {
        "file": str(file),
        "classes": [
            {"label": run.vocabulary.classes[i], "probability": float(probabilities[i])} for i in best
        ],
    }


def _probabilities(run: LoadedRun, pack: Pack, views: tuple[int, int]) -> np.ndarray:
    precision, _ = pick_precision(run.config.run.precision, run.device)
    task, classes = run.task, run.vocabulary.classes
    assert isinstance(task, ClassificationTask)
    rows = []
    with ClipLoader(
        pack, clip=run.config.clip, views=views, classes=classes, mode="threads",
        batch_size=min(views[0] * views[1], 16), device=run.device,
        mean=run.normalisation.mean, std=run.normalisation.std,
    ) as loader:  # fmt: skip
        for batch in loader:
            with autocast(precision, run.device):
                probabilities = task.probabilities(task.logits(batch))
            rows.append(probabilities.double().cpu().numpy())
    mean: np.ndarray = np.concatenate(rows).mean(axis=0)
    return mean
