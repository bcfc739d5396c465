"""Levers of an ablation: what each changes, and in which cells of the grid it is on.

# Note [Levers alone]
A lever is one setting with two values. All cells share all other settings, so that a difference
between two cells is the lever's. Accumulation keeps the global batch and divides the micro-batch:
as many updates from as many clips, only fewer activations at a time. (Batch normalisation sees
micro-batches, so what it learns does change.) Mixed precision computes products in bf16, or in
fp16 with a scaled loss where a GPU has no bf16. A processor without bf16 units emulates them, so
that its time says nothing of a GPU's. Pinned memory changes the memory that copies start from and
nothing else: all cells copy alike, clips on a stream of their own, pictures on the step's.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from matinee.errors import ConfigError
from matinee.training.config import TrainConfig
from matinee.training.search.dimensions import get_field, read_value, write_value
from matinee.training.search.space import put
from matinee.training.show.trackers import flat
from matinee.training.speed import SpeedConfig

NONE = "none"
NO_GPU = "unmeasurable without a GPU"
EMULATED = (
    "this processor has no bf16 units and emulates them, so that its time in bf16 says nothing of "
    "a GPU's"
)
_ON_GPUS_ONLY = ("speed.pinned", "speed.side_stream", "speed.tf32")
_MICRO_BATCHES = 4


@dataclass(frozen=True)
class Lever:
    """One `field` of the config with its values `off` and `on`.

    `cannot` says why it can't show where it is measured; "" if it can. `caution`: what its figures
    must not be taken for; "" if nothing is to be said.
    """

    name: str
    field: str
    off: Any
    on: Any
    cannot: str = ""
    caution: str = ""

    @property
    def about(self) -> str:
        return f"{self.field} {write_value(self.off)} → {write_value(self.on)}"


@dataclass(frozen=True)
class Cell:
    """A point of the grid: the levers that are on. `cannot`: why it is not run, "" if it is."""

    on: tuple[str, ...]
    cannot: str = ""

    @property
    def name(self) -> str:
        return "+".join(self.on) or NONE


@dataclass(frozen=True)
class Place:
    """Where an ablation runs: on a GPU or a CPU, with or without bf16 units, on an image set
    (`pictures`) that lies there (`resident`).
    """

    gpu: bool = False
    bf16: bool = True
    pictures: bool = False
    resident: bool = False


def read_levers(texts: Sequence[str], config: TrainConfig, place: Place) -> tuple[Lever, ...]:
    """Levers as --levers takes them: GA, GA=8, AMP, AMP=fp16, PM, or a speed field, recompute=1.

    Raises:
        ConfigError: not a lever, one that changes nothing, none at all, or the same field twice.
    """
    levers = tuple(_read(text, config, place) for text in texts)
    if not levers:
        raise ConfigError("--levers: at least one, such as GA AMP PM")
    fields = [lever.field for lever in levers]
    for field in fields:
        if fields.count(field) > 1:
            raise ConfigError(f"--levers {' '.join(texts)}: {field} is there twice")
    return levers


def _read(text: str, config: TrainConfig, place: Place) -> Lever:
    said = f"--levers {text}"
    name, equals, value = text.partition("=")
    if name == "GA":
        parts = read_value(value, int, said) if equals else _MICRO_BATCHES
        if parts < 2:
            raise ConfigError(f"{said}: micro-batches of a step, 2 or more")
        return Lever(name, "optim.accumulate", 1, parts)
    if name == "AMP":
        fast = value if equals else "bf16" if place.bf16 or not place.gpu else "fp16"
        if fast not in ("bf16", "fp16"):
            raise ConfigError(f"{said}: bf16 or fp16")
        return Lever(
            name, "speed.precision", "fp32", fast, _cannot("speed.precision", place),
            _caution(fast, place),
        )  # fmt: skip
    if name == "PM":
        if equals:
            raise ConfigError(f"{said}: PM takes no value")
        return Lever(name, "speed.pinned", False, True, _cannot("speed.pinned", place))
    return _speed_field(name, value, config, place, said)


def _speed_field(name: str, value: str, config: TrainConfig, place: Place, said: str) -> Lever:
    """Any field of SpeedConfig; a switch is turned, another value stands against the recipe's."""
    field = name.replace("-", "_")
    hints = typing.get_type_hints(SpeedConfig, include_extras=True)
    if field not in hints or field == "spans":
        known = ", ".join(sorted(known for known in hints if known != "spans"))
        raise ConfigError(f"{said}: no lever of this name; there are GA, AMP, PM and {known}")
    start = get_field(config, f"speed.{field}")
    if isinstance(start, bool) and not value:
        value = "true"
    on = read_value(value, hints[field], said)
    off = not on if isinstance(start, bool) else start
    if on == off:
        raise ConfigError(f"{said}: the recipe has this value already, so nothing would change")
    return Lever(
        field.replace("_", "-"), f"speed.{field}", off, on, _cannot(f"speed.{field}", place),
        _caution(on, place) if field == "precision" else "",
    )  # fmt: skip


def _caution(precision: Any, place: Place) -> str:
    return EMULATED if precision == "bf16" and not (place.bf16 or place.gpu) else ""


def _cannot(field: str, place: Place) -> str:
    if field in _ON_GPUS_ONLY and not place.gpu:
        return NO_GPU
    if field == "speed.side_stream" and place.pictures:
        return "no effect: batches of an image set are copied between steps"
    if field == "speed.pinned" and place.resident:
        return (
            "no effect: the image set lies on the GPU, so no batch is copied there; "
            "--set data.resident=false has them copied"
        )
    return ""


def grid(levers: Sequence[Lever]) -> tuple[Cell, ...]:
    """None, each alone, each pair, all; a cell with a lever that cannot show is not run."""
    sizes = sorted({0, 1, min(2, len(levers)), len(levers)})
    return tuple(
        Cell(
            tuple(lever.name for lever in chosen), next((x.cannot for x in chosen if x.cannot), "")
        )
        for size in sizes
        for chosen in combinations(levers, size)
    )


def configure(
    config: TrainConfig, levers: Sequence[Lever], cell: Cell, *, epochs: int, seed: int
) -> TrainConfig:
    """The whole config of a cell: each lever at one of its two values.

    Raises:
        ConfigError: settings that contradict each other.
    """
    values: dict[str, Any] = {x.field: x.on if x.name in cell.on else x.off for x in levers}
    warm_up = min(config.optim.warmup_epochs, epochs // 4)
    values |= {"optim.epochs": epochs, "optim.warmup_epochs": warm_up, "run.seed": seed}
    return put(config, values)


def changed(config: TrainConfig, texts: Sequence[str]) -> TrainConfig:
    """The config with FIELD=VALUE settings, as --set takes them.

    Raises:
        ConfigError: no such field, or a value it cannot have.
    """
    values: dict[str, Any] = {}
    for text in texts:
        said = f"--set {text}"
        field, equals, value = (part.strip() for part in text.partition("="))
        field = field.replace("-", "_")
        if not (field and equals):
            raise ConfigError(f"{said}: expected FIELD=VALUE, such as optim.lr=0.05")
        *path, last = field.split(".")
        section: Any = config
        for part in path:
            section = getattr(section, part, None)
        hints = typing.get_type_hints(type(section), include_extras=True) if section else {}
        if not path or last not in hints or hasattr(getattr(section, last, None), "__dict__"):
            raise ConfigError(f"{said}: no field {field}; see matinee train RECIPE --help")
        values[field] = read_value(value, hints[last], said)
    return put(config, values)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Settings that differ, as "name before → now", by dotted names."""
    old, new = flat(dict(before)), flat(dict(now))
    return [
        f"{name} {old.get(name)} → {new.get(name)}"
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]
