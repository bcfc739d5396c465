"""Open a run folder: its config and the network with its newest weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from matinee.errors import MatineeError
from matinee.models.base import Normalisation
from matinee.models.config import Joint
from matinee.tasks.base import Task, place
from matinee.tasks.build import build_task
from matinee.tasks.vocabulary import Vocabulary
from matinee.training.config import TrainConfig
from matinee.training.precision import pick_device
from matinee.training.state.runfolder import RunFolder


@dataclass(frozen=True)
class LoadedRun:
    """A finished or running run, ready to be evaluated. `step` steps were trained."""

    folder: RunFolder
    config: TrainConfig
    task: Task
    normalisation: Normalisation
    vocabulary: Vocabulary
    device: torch.device
    step: int


def load_run(path: str | Path, *, device: str = "auto") -> LoadedRun:
    """Open a run folder and load its newest checkpoint.

    Raises:
        ConfigError: no run there.
        MatineeError: no checkpoint yet, or a damaged one.
    """
    folder = RunFolder(path)
    config = folder.config()
    checkpoint = folder.load_checkpoint()
    where = pick_device(device)
    vocabulary = Vocabulary.from_dict(checkpoint["vocabulary"])
    # The checkpoint holds all weights, and nothing is kept for a backward pass.
    model_config = replace(config.model, pretrained="none")
    if isinstance(model_config.temporal, Joint):
        temporal = replace(model_config.temporal, checkpoint=0)
        model_config = replace(model_config, temporal=temporal)
    built = build_task(
        config.task, model_config, frames=config.clip.frames, size=config.clip.size,
        vocabulary=vocabulary,
    )  # fmt: skip
    try:
        built.task.model.load_state_dict(checkpoint["state"]["model"])
    except RuntimeError as error:
        raise MatineeError(f"{path}: checkpoint and config differ: {error}") from None
    place(built.task, where)
    built.task.eval()
    return LoadedRun(
        folder, config, built.task, built.normalisation, vocabulary, where,
        checkpoint["state"]["step"],
    )  # fmt: skip
