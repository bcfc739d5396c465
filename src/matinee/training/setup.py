"""From a config to the data, the task and the loaders of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from matinee.data.epochs import EpochLoader
from matinee.data.mix import check_pairs
from matinee.data.open_loader import open_loader
from matinee.data.random import integer_seed
from matinee.errors import ConfigError
from matinee.models.base import Normalisation
from matinee.models.batch_norm import to_sync_batch_norm
from matinee.models.layout import to_channels_last
from matinee.models.recompute import recompute_blocks
from matinee.models.text import TextTower
from matinee.pack.open import DataSet
from matinee.tasks.base import Task, place
from matinee.tasks.build import build_task
from matinee.tasks.config import ClassificationConfig, ContrastiveConfig
from matinee.tasks.contrastive import ContrastiveTask
from matinee.tasks.vocabulary import Vocabulary, make_sets, make_targets, read_vocabulary
from matinee.training.config import TrainConfig
from matinee.training.parallel.ranks import Ranks
from matinee.training.stages import Stage, plan_stages


@dataclass(frozen=True)
class Splits:
    """Which samples are trained on and validated on; `note` says why."""

    train: str | None
    val: str | None
    note: str


@dataclass(frozen=True)
class Setup:
    """All that a run needs besides its state. `targets` has a row for each row of the pack; `task`
    is on the device of `ranks`.
    """

    config: TrainConfig
    pack: DataSet
    splits: Splits
    vocabulary: Vocabulary
    targets: NDArray[Any]
    task: Task
    normalisation: Normalisation
    ranks: Ranks
    notes: tuple[str, ...]


def prepare(pack: DataSet, config: TrainConfig, ranks: Ranks, *, new_weights: bool = True) -> Setup:
    """Choose splits, make targets, build the task with weights that depend on the seed alone.

    Args:
        new_weights: read pretrained weights; False where a checkpoint replaces them.

    Raises:
        ConfigError: settings that contradict each other or the data.
    """
    splits = choose_splits(pack, config)
    labelled = config.task if isinstance(config.task, ClassificationConfig) else None
    if labelled is not None:
        vocabulary = read_vocabulary(pack.samples, labelled)
        targets = make_targets(pack.samples, labelled, vocabulary, np.arange(len(pack)))
        _check_labels(pack, splits, labelled, vocabulary, targets)
    elif isinstance(config.task, ContrastiveConfig) and config.task.graded:
        vocabulary, targets = make_sets(pack.samples)
        _check_sets(pack, splits, vocabulary, targets)
    else:
        vocabulary, targets = Vocabulary(()), np.full(len(pack), -1, dtype=np.int64)
    if isinstance(config.task, ContrastiveConfig):
        _check_captions(pack, splits)
    if config.model.partial_bn and config.model.pretrained == "none":
        raise ConfigError(
            "--model.partial-bn keeps batch normalisation as pretrained weights have it, and there "
            "are none: give --model.pretrained, or leave it out"
        )
    torch.manual_seed(integer_seed(config.run.seed, 0, 0, "weights"))
    model = config.model if new_weights else replace(config.model, pretrained="none")
    built = build_task(
        config.task, model, frames=config.clip.frames, size=config.clip.size,
        vocabulary=vocabulary,
    )  # fmt: skip
    speed = config.speed
    if speed.recompute:
        recompute_blocks(built.task.model, speed.recompute)
    if config.parallel.sync_bn:
        to_sync_batch_norm(built.task.model, ranks.device)
    place(built.task, ranks.device, channels_last=False)
    if speed.channels_last:
        # FSDP divides contiguous weights only.
        divided = config.parallel.strategy == "fsdp" and ranks.world > 1
        to_channels_last(built.task, weights=not divided)
    notes = built.notes
    if isinstance(built.task, ContrastiveTask):
        notes = (*notes, _say_cut(pack, splits, built.task.model.text))
    return Setup(
        config, pack, splits, vocabulary, targets, built.task, built.normalisation, ranks, notes
    )


def micro_batch(config: TrainConfig, world: int, stage: Stage, parts: int) -> int:
    """Clips of a micro-batch in a stage of the run, with `parts` of them a step on each rank.

    Raises:
        ConfigError: a batch that cannot be cut so.
    """
    micro, left = divmod(stage.batch_size, parts * world)
    if left or not micro:
        raise ConfigError(
            f"--optim.batch-size {stage.batch_size} cannot be cut into {parts} parts on "
            f"{world} ranks (--optim.accumulate, --simulate-world, --gpus): choose a multiple of "
            f"{parts * world}"
        )
    task = config.task
    if isinstance(task, ClassificationConfig) and (task.mixup or task.cutmix):
        check_pairs(micro, crops=config.data.clips * config.data.crops)
    return micro


def parts_of(config: TrainConfig, world: int) -> int:
    """Micro-batches of a step on each of `world` ranks.

    Raises:
        ConfigError: the ranks cannot share the batches, in some stage of the run.
    """
    simulated = config.parallel.simulate_world
    parts, left = config.optim.accumulate, 0
    if simulated is not None:
        parts, left = divmod(parts * simulated, world)
    if left or not parts:
        raise ConfigError(
            f"--parallel.simulate-world {simulated}: {world} real ranks cannot share the work of "
            "so many equally: choose a multiple"
        )
    for stage in stages_of(config):
        micro_batch(config, world, stage, parts)
    return parts


def stages_of(config: TrainConfig) -> tuple[Stage, ...]:
    """Of a run, the last with its whole clips."""
    return plan_stages(
        config.speed.stages, epochs=config.optim.epochs, frames=config.clip.frames,
        size=config.clip.size, batch_size=config.optim.batch_size,
    )  # fmt: skip


def training_loader(setup: Setup, stage: Stage, parts: int) -> EpochLoader:
    """What one rank trains on in a stage of the run."""
    config = setup.config
    micro = micro_batch(config, setup.ranks.world, stage, parts)
    return open_loader(
        setup.pack, split=setup.splits.train, batch_size=micro, group=parts,
        clip=replace(config.clip, frames=stage.frames, size=stage.size),
        repeats=config.data.repeats, clips=config.data.clips, crops=config.data.crops,
        pinned=config.speed.pinned,
        side_stream=config.speed.side_stream, **_shared(setup),
    )  # fmt: skip


def validation_loader(setup: Setup, batch_size: int) -> EpochLoader:
    """The samples that this rank validates on, one view each."""
    return open_loader(
        setup.pack, split=setup.splits.val, batch_size=batch_size, views=(1, 1),
        clip=setup.config.clip, **_shared(setup),
    )  # fmt: skip


def _shared(setup: Setup) -> dict[str, Any]:
    config, ranks = setup.config, setup.ranks
    return {
        "mode": config.data.mode, "on_error": config.data.on_error, "device": ranks.device,
        "resident": config.data.resident,
        "workers": config.data.workers, "threads": config.data.threads,
        "local_world": ranks.local_world, "seed": config.run.seed, "mean": setup.normalisation.mean,
        "std": setup.normalisation.std, "classes": setup.vocabulary.classes,
        "targets": setup.targets, "rank": ranks.rank, "world": ranks.world,
    }  # fmt: skip


def choose_splits(pack: DataSet, config: TrainConfig) -> Splits:
    """The splits of a config, or the pack's usual ones.

    Raises:
        ConfigError: no training split, or samples that are in both.
    """
    names = pack.splits()
    train = config.data.train_split or ("train" if "train" in names else None)
    val = config.data.val_split or next((n for n in ("val", "test") if n in names), None)
    if train is None and set(names) - {""}:
        raise ConfigError(
            f"{pack.path} has no split 'train' but {', '.join(n for n in names if n)}: "
            "say which to use with --data.train-split and --data.val-split"
        )
    if val is not None:
        both = np.intersect1d(pack.select(train), pack.select(val))
        if len(both):
            raise ConfigError(
                f"{pack.path}: {len(both)} samples are in the training split {train!r} and in "
                f"{val!r}, which is validated on: set --data.val-split (and --data.train-split)"
            )
    note = (
        f"train on {train or 'all samples'}, validate on {val or 'nothing: no val or test split'}"
    )
    return Splits(train, val, note)


def _check_labels(
    pack: DataSet,
    splits: Splits,
    config: ClassificationConfig,
    vocabulary: Vocabulary,
    targets: NDArray[Any],
) -> None:
    """Refuse unlabelled training samples, a single class, and classes only validation has.

    Pairs of verb and noun that training never saw are allowed: their verbs and nouns count.
    """
    rows = pack.select(splits.train)
    labelled = np.asarray(targets.any(axis=1) if targets.ndim == 2 else targets >= 0)
    _refuse(pack, splits.train, rows, rows[~labelled[rows]], "label")
    trained = _occurring(targets[rows], len(vocabulary.classes))
    if splits.val is not None and config.labels != "verb+noun":
        held = _occurring(targets[pack.select(splits.val)], len(vocabulary.classes))
        unseen = np.flatnonzero(held & ~trained)
        if len(unseen):
            raise ConfigError(
                f"{pack.path}: {len(unseen)} of {held.sum()} classes of split {splits.val!r} never "
                f"occur in the training split {splits.train!r}, the first is "
                f"{vocabulary.classes[unseen[0]]!r}: choose other splits or leave these samples out"
            )
    if trained.sum() < 2:
        raise ConfigError(
            f"{pack.path}: the training split has the single label "
            f"{vocabulary.classes[int(trained.argmax())]!r}; classification needs two or more"
        )


def _occurring(targets: NDArray[Any], classes: int) -> NDArray[np.bool_]:
    """Which classes any of the samples has, [K]."""
    if targets.ndim == 2:
        return np.asarray(targets.any(axis=0))
    return np.bincount(targets[targets >= 0], minlength=classes) > 0


def _check_sets(
    pack: DataSet, splits: Splits, vocabulary: Vocabulary, targets: NDArray[np.float32]
) -> None:
    """Refuse training samples without a verb or a noun: their relevancy is undefined."""
    rows, verbs = pack.select(splits.train), len(vocabulary.verbs)
    for name, part in (("verb", targets[:, :verbs]), ("noun", targets[:, verbs:])):
        _refuse(pack, splits.train, rows, rows[~part[rows].any(axis=1)], name)


def _say_cut(pack: DataSet, splits: Splits, text: TextTower) -> str:
    rows = pack.select(splits.train)
    captions = [caption for own in pack.captions_of(rows) for caption in own]
    cut = text.count_cut(captions)
    return (
        f"{len(captions)} captions of {len(rows)} clips; "
        f"{cut or 'none'} longer than {text.context} tokens{' and cut to them' if cut else ''}"
    )


def _check_captions(pack: DataSet, splits: Splits) -> None:
    """Refuse samples without a caption."""
    for split in (splits.train, splits.val or splits.train):
        rows = pack.select(split)
        empty = rows[[not own for own in pack.captions_of(rows)]]
        _refuse(pack, split, rows, empty, "caption (column 'text')")


def _refuse(
    pack: DataSet, split: str | None, rows: NDArray[np.int64], bare: NDArray[np.int64], what: str
) -> None:
    """An error about the samples `bare` of a split's `rows`, if there are any."""
    if len(bare):
        name = pack.samples.column("sample")[int(bare[0])].as_py()
        where = "in all" if split is None else f"of split {split!r}"
        raise ConfigError(
            f"{pack.path}: {len(bare)} of {len(rows)} samples {where} have no {what}, the first is "
            f"{name!r}: give them one or leave them out"
        )
