"""Open a run folder: its config and the network with its newest weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from matinee.errors import MatineeError
from matinee.models.classifier import Normalisation, VideoClassifier, build_classifier
from matinee.training.config import TrainConfig
from matinee.training.precision import pick_device
from matinee.training.runfolder import RunFolder


@dataclass(frozen=True)
class LoadedRun:
    """A finished or running run, ready to be evaluated. `step` steps were trained."""

    folder: RunFolder
    config: TrainConfig
    model: VideoClassifier
    normalisation: Normalisation
    classes: tuple[str, ...]
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
    classes = tuple(checkpoint["classes"])
    model_config = replace(config.model, pretrained="none")  # the checkpoint holds all weights
    model, normalisation, _ = build_classifier(
        model_config, num_classes=len(classes), frames=config.clip.frames
    )
    try:
        model.load_state_dict(checkpoint["state"]["model"])
    except RuntimeError as error:
        raise MatineeError(f"{path}: checkpoint and config differ: {error}") from None
    model.to(where).to(memory_format=torch.channels_last).eval()
    return LoadedRun(
        folder, config, model, normalisation, classes, where, checkpoint["state"]["step"]
    )
