"""Classify video files that were never packed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from matinee.data.batch import Batch
from matinee.data.loader import ClipLoader
from matinee.errors import ConfigError, MatineeError, MediaError
from matinee.inference.embed import autocast_of, features_of
from matinee.inference.load import LoadedRun, load_run
from matinee.inference.zero_shot import name_classes
from matinee.media.probe import probe
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.annotations.base import bystander
from matinee.pack.profiles import make_profile
from matinee.pack.reading.reader import Pack
from matinee.pack.writing.index import index_videos
from matinee.pack.writing.index_job import needs_normalising
from matinee.pack.writing.writer import write_pack
from matinee.tasks.classification import ClassificationTask
from matinee.tasks.contrastive import ContrastiveTask

_NAMED = 5  # skipped files that are named


def predict(
    run: str | Path | LoadedRun,
    files: Sequence[str | Path],
    *,
    labels: Sequence[str] | None = None,
    views: tuple[int, int] = (3, 1),
    top: int = 5,
    device: str = "auto",
    say: Callable[[str], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """The most probable classes of each file.

    A file is indexed in place, so only the frames of its views are decoded; one that needs to be
    normalised first (turned, anamorphic, interlaced, unevenly spaced) is packed to a temporary
    folder, which `say` is told.

    Args:
        files: video files, and folders whose videos are taken, also from folders within; what is
            no video by its name is skipped there, which `say` is told.
        labels: the classes, for a contrastive run, which tells them by their names.
        on_progress: called with (files done, files in all).

    Returns:
        A row a file: file, classes (list of {label, probability}, best first), or file and error.

    Raises:
        ConfigError: no such run, no files, a run that names no classes, or labels it cannot take.
    """
    say = say or (lambda _: None)
    if not files:
        raise ConfigError("no files to predict")
    loaded = run if isinstance(run, LoadedRun) else load_run(run, device=device)
    namer = _namer(loaded, labels)
    found, skipped = find_videos(files)
    if skipped:
        named = ", ".join(f"{path} ({why})" for path, why in skipped[:_NAMED])
        say(f"skipped {len(skipped)}: {named}{', …' if len(skipped) > _NAMED else ''}")
    rows = []
    for done, file in enumerate(found):
        if on_progress is not None:
            on_progress(done, len(found))
        rows.append(_predict_one(loaded, namer, file, views, top, say))
    if on_progress is not None:
        on_progress(len(found), len(found))
    return rows


def find_videos(paths: Sequence[str | Path]) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Files as they are given, folders as the videos below them, in order of their names.

    Returns:
        The videos, and what lies beside them in folders with the reason why it is none. Links are
        followed, but no folder is entered twice.

    Raises:
        ConfigError: a folder without videos.
    """
    videos: list[Path] = []
    beside: list[tuple[Path, str]] = []
    for path in map(Path, paths):
        if not path.is_dir():
            videos.append(path)  # what cannot be read gets its reason when it is opened
            continue
        below = [(file, bystander(file)) for file in _files_below(path)]
        found = [file for file, reason in below if reason is None]
        if not found:
            raise ConfigError(f"{path} is a folder without videos")
        videos += found
        beside += [(file, reason) for file, reason in below if reason is not None]
    return videos, beside


def _files_below(folder: Path) -> list[Path]:
    files = []
    entered = set()
    for base, inner, names in os.walk(folder, followlinks=True):
        entered.add(os.path.realpath(base))
        inner[:] = [
            name
            for name in inner
            if not name.startswith(".") and os.path.realpath(Path(base) / name) not in entered
        ]
        files += [Path(base) / name for name in names]
    return sorted(files)


@dataclass(frozen=True)
class _Namer:
    """`outputs` of each view [B, …] are averaged; `probabilities` makes of the mean those of
    `classes`.
    """

    classes: tuple[str, ...]
    outputs: Callable[[Batch], Tensor]
    probabilities: Callable[[NDArray[np.float64]], NDArray[np.float64]]


def _namer(run: LoadedRun, labels: Sequence[str] | None) -> _Namer:
    task = run.task
    if isinstance(task, ClassificationTask):
        if labels is not None:
            raise ConfigError(
                f"{run.folder.path} has classes of its own: labels are for contrastive runs"
            )
        return _Namer(
            run.vocabulary.classes,
            lambda batch: task.probabilities(task.logits(batch)),
            lambda mean: mean,
        )
    if not isinstance(task, ContrastiveTask):
        raise ConfigError(
            f"{run.folder.path} is a run of {task.kind}: predict names classes and needs a run of "
            "classification, or a contrastive one and --labels"
        )
    if labels is None:
        raise ConfigError(
            f"{run.folder.path} is a contrastive run, which knows no classes: name them with "
            '--labels "one,another"'
        )
    named = name_classes(run, labels)
    return _Namer(named.classes, features_of(task), lambda mean: named.probabilities(mean[None])[0])


def _predict_one(
    run: LoadedRun,
    namer: _Namer,
    file: Path,
    views: tuple[int, int],
    top: int,
    say: Callable[[str], None],
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
            probabilities = namer.probabilities(_mean(run, namer, Pack(place), views))
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
            {"label": namer.classes[i], "probability": float(probabilities[i])} for i in best
        ],
    }


def _mean(run: LoadedRun, namer: _Namer, pack: Pack, views: tuple[int, int]) -> NDArray[np.float64]:
    rows = []
    with ClipLoader(
        pack, clip=run.config.clip, views=views, classes=run.vocabulary.classes, mode="threads",
        batch_size=min(views[0] * views[1], 16), device=run.device,
        mean=run.normalisation.mean, std=run.normalisation.std,
    ) as loader, torch.no_grad():  # fmt: skip
        for batch in loader:
            with autocast_of(run)():
                rows.append(namer.outputs(batch).double().cpu().numpy())
    mean: NDArray[np.float64] = np.concatenate(rows).mean(axis=0)
    return mean
