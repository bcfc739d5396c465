"""The full configuration of a training run: plain dataclasses, each field with its reason."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro

from matinee.data.clips import ClipSpec
from matinee.errors import ConfigError
from matinee.models.config import ModelConfig
from matinee.tasks.config import ClassificationConfig, TaskConfig


@dataclass(frozen=True)
class DataConfig:
    """Which data, and who decodes it."""

    path: Annotated[str, tyro.conf.arg(aliases=["--data"])]
    """The pack."""
    train_split: str | None = None
    """Samples to train on: a split, or column=value[,value…]. Default: "train" if there is one,
    else all."""
    val_split: str | None = None
    """Samples to validate on. Default: "val", else "test", else none."""
    repeats: int = 1
    """Different clips of each sample in an epoch; more for small sets."""
    workers: int | None = None
    """Decoders. Default: the usable cores, at most 16."""
    mode: Literal["processes", "threads"] = "processes"
    """processes: nothing the training loop does slows them; threads: simple, no start-up."""
    on_error: Literal["raise", "mask"] = "raise"
    """A clip that cannot be read: stop with file and reason, or mask, count and log it (a batch
    without any clip left stops the run)."""


@dataclass(frozen=True)
class OptimConfig:
    """How weights move."""

    name: Literal["sgd", "adamw", "lion"] = "sgd"
    """lion: arXiv 2302.06675."""
    lr: float = 0.01
    """Peak learning rate."""
    base_batch: int | None = None
    """The batch size that `lr` and `min_lr` are given for: they grow with the batch in proportion
    (arXiv 1706.02677, §2.1). None: they stay as they are."""
    batch_size: int = 16
    """Clips a step (the global batch)."""
    accumulate: int = 1
    """Split each batch into this many parts to save memory; the gradient stays the same, but for
    batch statistics and dropout."""
    epochs: int = 50
    warmup_epochs: float = 1.0
    """Linear from 0 to lr."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """cosine: down to min_lr at the end; step: divided by 10 at each of `drops`."""
    min_lr: float = 0.0
    """Of cosine."""
    drops: tuple[float, ...] = (0.4, 0.8)
    """Of step, as parts of the epochs (TSM: 20 and 40 of 50)."""
    momentum: float = 0.9
    """Of SGD (Nesterov off, as in TSM)."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of AdamW and Lion: how slowly the means of gradients change."""
    weight_decay: float = 1e-4
    """Not on biases, norms, positions and special tokens."""
    layer_decay: float = 1.0
    """ViTs: each block learns at this times the rate of the next one (BEiT, arXiv 2106.08254);
    patches and positions as one block before the first."""
    head_lr: float = 1.0
    """The classifier's learning rate, in multiples of all others' (TSM's code: 5)."""
    clip_norm: float | None = 20.0
    """Largest gradient norm (TSM: 20); None for no limit."""

    def __post_init__(self) -> None:
        checks = [
            (self.lr > 0, f"--optim.lr {self.lr}: must be positive"),
            (
                self.base_batch is None or self.base_batch >= 1,
                f"--optim.base-batch {self.base_batch}: at least 1, or None",
            ),
            (self.batch_size >= 1, f"--optim.batch-size {self.batch_size}: at least 1"),
            (
                self.accumulate >= 1 and self.batch_size % max(1, self.accumulate) == 0,
                f"--optim.accumulate {self.accumulate} does not divide the batch size "
                f"{self.batch_size}",
            ),
            (self.epochs >= 1, f"--optim.epochs {self.epochs}: at least 1"),
            (self.warmup_epochs >= 0, f"--optim.warmup-epochs {self.warmup_epochs}: 0 or more"),
            (
                0 <= self.min_lr <= self.lr,
                f"--optim.min-lr {self.min_lr}: from 0 to --optim.lr {self.lr}",
            ),
            (
                all(0 < drop < 1 for drop in self.drops),
                f"--optim.drops {self.drops}: parts of the epochs, between 0 and 1",
            ),
            (self.weight_decay >= 0, f"--optim.weight-decay {self.weight_decay}: 0 or more"),
            (0 <= self.momentum < 1, f"--optim.momentum {self.momentum}: in [0, 1)"),
            (all(0 <= b < 1 for b in self.betas), f"--optim.betas {self.betas}: in [0, 1)"),
            (0 < self.layer_decay <= 1, f"--optim.layer-decay {self.layer_decay}: in (0, 1]"),
            (self.head_lr > 0, f"--optim.head-lr {self.head_lr}: must be positive"),
            (
                self.clip_norm is None or self.clip_norm > 0,
                f"--optim.clip-norm {self.clip_norm}: positive or None",
            ),
        ]
        for holds, message in checks:
            if not holds:
                raise ConfigError(message)


@dataclass(frozen=True)
class RunConfig:
    """Where and how the run goes."""

    out: Annotated[str, tyro.conf.arg(aliases=["--out"])]
    """Folder of the run: config.json, metrics.jsonl, last.pt."""
    seed: int = 0
    """Of everything random: initial weights, order, augmentation, dropout."""
    device: str = "auto"
    """auto: a GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """bf16: autocast of matrix products and convolutions; auto: bf16 on a GPU that has it."""
    log_every: int = 10
    """Steps between lines of metrics.jsonl."""
    eval_every: int = 1
    """Epochs between validations; the last epoch is always validated."""
    views: str = "1x1"
    """TEMPORALxSPATIAL clips of a sample that `matinee eval` averages over, as the recipe's paper
    does; validation during training takes one."""
    save_minutes: float = 5.0
    """Longest time between checkpoints; one is also saved at the end of each epoch."""

    def __post_init__(self) -> None:
        for name in ("log_every", "eval_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--run.{name.replace('_', '-')}: at least 1")


@dataclass(frozen=True)
class TrainConfig:
    """A whole run. Recipes return one; the command line changes any field."""

    data: DataConfig
    run: RunConfig
    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=ClassificationConfig)
    clip: ClipSpec = field(default_factory=ClipSpec)
    optim: OptimConfig = field(default_factory=OptimConfig)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; where a field has one of several kinds, "kind" says which."""
        plain = _to_dict(self)
        assert isinstance(plain, dict)
        return plain

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    @staticmethod
    def from_json(text: str) -> TrainConfig:
        """Read what `to_json` wrote.

        Raises:
            ConfigError: unknown or missing fields.
        """
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ConfigError("a saved config is damaged: it holds no object")
        config = _from_dict(TrainConfig, values)
        assert isinstance(config, TrainConfig)
        return config


def _to_dict(value: Any) -> Any:
    if not dataclasses.is_dataclass(value):
        return value
    plain = {f.name: _to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return {"kind": value.kind, **plain} if hasattr(value, "kind") else plain


def _from_dict(kind: Any, values: Any) -> Any:
    """Build a dataclass (or tuple) from JSON values, by its type hints."""
    if typing.get_origin(kind) is Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kinds = {k.kind: k for k in typing.get_args(kind) if hasattr(k, "kind")}
        if not kinds:
            return values
        if not isinstance(values, dict) or values.get("kind") not in kinds:
            raise ConfigError(f"a saved config is damaged: no kind among {', '.join(kinds)}")
        kind = kinds[values["kind"]]
        values = {name: value for name, value in values.items() if name != "kind"}
    if typing.get_origin(kind) is tuple:
        return tuple(values)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return values
    hints = typing.get_type_hints(kind, include_extras=True)
    if not isinstance(values, dict):
        raise ConfigError(f"a saved config is damaged: {kind.__name__} is no object")
    unknown = set(values) - set(hints)
    if unknown:
        raise ConfigError(f"unknown setting {sorted(unknown)[0]!r} in a saved config")
    try:
        return kind(**{name: _from_dict(hints[name], value) for name, value in values.items()})
    except TypeError as error:
        raise ConfigError(f"a saved config does not fit: {error}") from None
