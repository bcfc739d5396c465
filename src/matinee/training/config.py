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
from matinee.evaluation.views import parse_views
from matinee.models.config import ModelConfig
from matinee.pack.open import DataSet, open_data, typed_secret
from matinee.tasks.config import ClassificationConfig, TaskConfig
from matinee.training.optim.config import OptimConfig
from matinee.training.parallel.config import ParallelConfig
from matinee.training.speed import SpeedConfig

__all__ = ["DataConfig", "OptimConfig", "ParallelConfig", "RunConfig", "SpeedConfig", "TrainConfig"]


@dataclass(frozen=True)
class DataConfig:
    """Which data, and who decodes it."""

    path: Annotated[str, tyro.conf.arg(aliases=["--data"])]
    """The pack, a folder or an address (s3://, gs://, http(s)://); several as a.pack,b.pack (each
    clip once an epoch), or with the part that each gives as a.pack:2,b.pack:1."""
    train_split: str | None = None
    """Samples to train on: a split, or column=value[,value…]. Default: "train" if there is one,
    else all."""
    val_split: str | None = None
    """Samples to validate on. Default: "val", else "test", else none."""
    repeats: int = 1
    """Different clips of each sample in an epoch; more for small sets."""
    clips: int = 1
    """Different clips of each sample next to each other in a batch."""
    crops: int = 1
    """Crops of each decoded clip, next to each other in a batch (repeated augmentation,
    arXiv 1901.09335): decoding costs that much less a clip."""
    workers: int | None = None
    """Decoders. Default: one a core that this rank may use, at most 16."""
    threads: int | None = None
    """Decoders of one process. Default: 1, and 2 where there are more than 8 decoders."""
    mode: Literal["processes", "threads", "nvdec"] = "processes"
    """processes: nothing the training loop does slows them; threads: simple, no start-up; nvdec:
    the GPU decodes (pip install 'matinee[gpu-decode]'), and where it cannot, processes do, which is
    said."""
    resident: bool = True
    """An image set lies on the GPU as a whole; without, each batch is copied there, for sets larger
    than its memory (no effect on a CPU)."""
    cache: str | None = None
    """A folder for what was read of packs at s3://, gs:// and http(s)://. Default: none."""
    cache_gb: float = 64.0
    """Gigabytes that the cache may hold; what was not read for longest goes first."""
    on_error: Literal["raise", "mask"] = "raise"
    """A clip that cannot be read: stop with file and reason, or mask, count and log it (a batch
    without any clip left stops the run)."""

    def __post_init__(self) -> None:
        for name in ("repeats", "clips", "crops", "workers", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--data.{name} {value}: at least 1")
        if isinstance(self.path, str) and typed_secret(self.path):  # a flag may be missing yet
            raise ConfigError(
                "--data holds a password or a signature, which would be written into config.json: "
                "put it into an environment variable and name that: 'https://${MY_LOGIN}@host/my.pack'"
            )
        if not self.cache_gb > 0:
            raise ConfigError(f"--data.cache-gb {self.cache_gb}: more than 0")

    def open(self) -> DataSet:
        """The data set.

        Raises:
            PackError: there is none, or it is damaged.
        """
        return open_data(self.path, cache=self.cache, cache_bytes=int(self.cache_gb * 1e9))


@dataclass(frozen=True)
class RunConfig:
    """Where and how the run goes."""

    out: Annotated[str, tyro.conf.arg(aliases=["--out"])]
    """Folder of the run: config.json, metrics.jsonl, checkpoints, last.pt and best.pt."""
    seed: int = 0
    """Of everything random: initial weights, order, augmentation, dropout."""
    device: str = "auto"
    """auto: a GPU if there is one."""
    log_every: int = 10
    """Steps between lines of metrics.jsonl."""
    eval_every: int = 1
    """Epochs between validations; the last epoch is always validated."""
    views: str = "1x1"
    """TEMPORALxSPATIAL clips of a sample that `matinee eval` averages over, as the recipe's paper
    does; validation during training takes one."""
    save_minutes: float = 5.0
    """Longest time between checkpoints; one is also saved at the end of each epoch."""
    save_steps: int | None = None
    """Save after every so many steps as well."""
    keep: int = 2
    """Checkpoints that stay, besides the best: one that is damaged has another before it. While
    one is written there is one more on the disk."""
    loggers: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ()
    """Where metrics go besides metrics.jsonl; each is an extra of its name."""

    def __post_init__(self) -> None:
        for name in ("log_every", "eval_every", "keep", "save_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--run.{name.replace('_', '-')} {value}: at least 1")
        if not self.save_minutes > 0:
            raise ConfigError(f"--run.save-minutes {self.save_minutes}: must be positive")
        try:
            parse_views(self.views)
        except ConfigError as error:
            raise ConfigError(f"--run.views: {error}") from None


@dataclass(frozen=True)
class TrainConfig:
    """A whole run. Recipes return one; the command line changes any field."""

    data: DataConfig
    run: RunConfig
    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=ClassificationConfig)
    clip: ClipSpec = field(default_factory=ClipSpec)
    optim: OptimConfig = field(default_factory=OptimConfig)
    speed: SpeedConfig = field(default_factory=SpeedConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

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
