"""From a config to the data and the model of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from matinee.data.random import integer_seed
from matinee.errors import ConfigError
from matinee.models.classifier import Normalisation, VideoClassifier, build_classifier
from matinee.pack.reader import Pack
from matinee.training.config import TrainConfig


@dataclass(frozen=True)
class Splits:
    """Which samples are trained on and validated on; `note` says why."""

    train: str | None
    val: str | None
    note: str


def choose_splits(pack: Pack, config: TrainConfig) -> Splits:
    """The splits of a config, or the pack's usual ones.

    Raises:
        ConfigError: classes that only validation has, or training samples without a label.
    """
    names = pack.splits()
    train = config.data.train_split or ("train" if "train" in names else None)
    val = config.data.val_split or next((n for n in ("val", "test") if n in names), None)
    if train is None and set(names) - {""}:
        raise ConfigError(
            f"{pack.path} has no split 'train' but {', '.join(n for n in names if n)}: "
            "say which to use with --data.train-split and --data.val-split"
        )
    labels = pack.samples.column("label").to_pylist()
    trained = {labels[i] for i in pack.select(train)}
    if None in trained:
        raise ConfigError(f"{pack.path}: training samples without a label (split {train!r})")
    if val is not None:
        both = np.intersect1d(pack.select(train), pack.select(val))
        if len(both):
            raise ConfigError(
                f"{pack.path}: {len(both)} samples are in the training split {train!r} and in "
                f"{val!r}, which is validated on: set --data.val-split (and --data.train-split)"
            )
        unseen = {labels[i] for i in pack.select(val)} - trained - {None}
        if unseen:
            raise ConfigError(
                f"{pack.path}: label {min(unseen)!r} is in split {val!r} but not in the training "
                f"split {train!r}"
            )
    if len(trained) < 2:
        raise ConfigError(
            f"{pack.path}: the training split has the single label {min(trained)!r}; "
            "classification needs two or more"
        )
    note = (
        f"train on {train or 'all samples'}, validate on {val or 'nothing: no val or test split'}"
    )
    return Splits(train, val, note)


def build_seeded(
    config: TrainConfig, num_classes: int, device: torch.device
) -> tuple[VideoClassifier, Normalisation, str]:
    """The model with initial weights that depend on the seed alone."""
    torch.manual_seed(integer_seed(config.run.seed, 0, 0, "weights"))
    model, normalisation, note = build_classifier(
        config.model, num_classes=num_classes, frames=config.clip.frames
    )
    model.to(device).to(memory_format=torch.channels_last)
    return model, normalisation, note
