"""Open a run folder: its config and the network with the weights of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from matinee.errors import ConfigError, MatineeError
from matinee.models.base import Normalisation
from matinee.tasks.base import Task, place
from matinee.tasks.build import build_task
from matinee.tasks.vocabulary import Vocabulary
from matinee.training.config import TrainConfig
from matinee.training.precision import pick_device
from matinee.training.state.checkpoints import Name
from matinee.training.state.runfolder import RunFolder


@dataclass(frozen=True)
class LoadedRun:
    """A finished or running run, ready to be evaluated.

    `checkpoint` says which was loaded, after `step` steps; `notes` are sentences about its weights.
    """

    folder: RunFolder
    config: TrainConfig
    task: Task
    normalisation: Normalisation
    vocabulary: Vocabulary
    device: torch.device
    step: int
    checkpoint: Name
    notes: tuple[str, ...]


def load_run(path: str | Path, *, device: str = "auto", checkpoint: Name = "last") -> LoadedRun:
    """Open a run folder and load its newest checkpoint, or the one that validated best.

    Where training kept an average of the weights (EMA), that is loaded: it is what was validated.

    Raises:
        ConfigError: no run there, no such device.
        MatineeError: no checkpoint yet, or a damaged one.
    """
    folder = RunFolder(path)
    config = folder.config()
    held = folder.load_checkpoint(checkpoint)
    where = _device(device)
    vocabulary = Vocabulary.from_dict(held["vocabulary"])
    model = replace(config.model, pretrained="none")  # the checkpoint holds all weights
    built = build_task(
        config.task, model, frames=config.clip.frames, size=config.clip.size,
        vocabulary=vocabulary,
    )  # fmt: skip
    weights, notes = _weights(held["state"])
    try:
        built.task.model.load_state_dict(weights)
    except RuntimeError as error:
        raise MatineeError(f"{path}: checkpoint and config differ: {error}") from None
    place(built.task, where)
    built.task.eval()
    return LoadedRun(
        folder, config, built.task, built.normalisation, vocabulary, where,
        held["state"]["step"], checkpoint, notes,
    )  # fmt: skip


def _weights(state: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The averaged weights where there are any; what is not averaged comes from the model."""
    averaged = state.get("ema")
    if averaged is None:
        return state["model"], ()
    note = f"weights averaged over {averaged['updates']:,} updates (EMA), as they were validated"
    return {**state["model"], **averaged["weights"]}, (note,)


def _device(wanted: str) -> torch.device:
    try:
        return pick_device(wanted)
    except ConfigError as error:
        # Its flag has a section in training; whatever opens a run calls it by its plain name.
        raise ConfigError(str(error).replace("--run.device", "--device")) from None
