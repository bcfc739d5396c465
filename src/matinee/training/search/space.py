"""A search space: dimensions, drawn one after the other, and put into a config."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from matinee.errors import ConfigError
from matinee.tasks.config import MaskedConfig
from matinee.training.config import TrainConfig
from matinee.training.search.dimensions import (
    Condition,
    Dimension,
    get_field,
    parse_dimension,
    write_value,
)

# Which settings have an effect only beside which others.
_ONLY_WITH = {
    "optim.momentum": Condition("optim.name", ("sgd", "lars", "muon")),
    "optim.betas": Condition("optim.name", ("adam", "adamw", "lion", "lamb", "muon")),
    "optim.rise": Condition("optim.schedule", ("one-cycle",)),
    "optim.drops": Condition("optim.schedule", ("step",)),
    "task.margin": Condition("task.loss", ("max-margin",)),
}
# What decides how hard a masked clip is to reconstruct, so that losses cannot be compared.
_DIFFICULTY = {
    "task.mask_ratio", "task.decode_ratio", "task.normalise_targets", "model.patch_size",
    "model.temporal.tubelet", "clip.frames", "clip.sampling", "clip.stride", "clip.fps",
    "clip.modality", "clip.size", "clip.center_scale",
}  # fmt: skip


class Asks(Protocol):
    """What draws values: an Optuna trial, or a stand-in."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float: ...
    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int: ...
    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any: ...


def make_space(
    texts: Sequence[str], config: TrainConfig, default: Sequence[Dimension]
) -> tuple[Dimension, ...]:
    """Dimensions from texts as --search takes them; without any the default ones. The text
    "default" stands for those of the default whose fields no other text names.

    A field that only matters beside a value of another is searched only there; dimensions come
    after those that they depend on.

    Raises:
        ConfigError: texts that cannot be read, contradict each other or the config.
    """
    given = [parse_dimension(text, config) for text in texts if text != "default"]
    if not texts or len(given) < len(texts):
        named = {dimension.field for dimension in given}
        given = [d for d in default if d.field not in named] + given
    space = [_bound(dimension, given, config) for dimension in given]
    _check_names(space, config)
    return _in_order(space)


def read_space(path: Path) -> tuple[str, ...]:
    """Texts from a JSON file: a list of strings as --search takes them.

    Raises:
        ConfigError: no such file, or another content.
    """
    try:
        texts = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"--space {path}: no such file") from None
    except ValueError as error:
        raise ConfigError(f"--space {path}: no JSON: {error}") from None
    if not (isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)):
        raise ConfigError(
            f'--space {path}: expected a list of strings such as "optim.lr=1e-4..1e-1:log"'
        )
    return tuple(texts)


def _bound(dimension: Dimension, given: Sequence[Dimension], config: TrainConfig) -> Dimension:
    """With the condition that the field has by nature; without one that always holds."""
    when = dimension.when or _ONLY_WITH.get(dimension.field)
    if when is None:
        return dimension
    said = f"--search {dimension.text}"
    held = [other for other in given if other.field == when.field]
    if not held:
        now = get_field(config, when.field)
        if now not in when.values:
            raise ConfigError(
                f"{said}: has no effect with {when.field} {write_value(now)}, and {when.field} is "
                "not searched"
            )
        return replace(dimension, when=None)
    if any(not other.choices for other in held):
        raise ConfigError(f"{said}: {when.field} is searched in a range; conditions take a list")
    offered = {value for other in held for value in other.choices}
    values = tuple(value for value in when.values if value in offered)
    if not values:
        raise ConfigError(f"{said}: {when.field} is never {_or(when.values)} in this search")
    if set(values) == offered and all(other.when is None for other in held):
        return replace(dimension, when=None)
    return replace(dimension, when=Condition(when.field, values))


def _check_names(space: Sequence[Dimension], config: TrainConfig) -> None:
    """Refuse a field twice under the same condition, and losses that cannot be compared."""
    for number, dimension in enumerate(space):
        for other in space[:number]:
            if other.field != dimension.field:
                continue
            a, b = other.when, dimension.when
            apart = a and b and a.field == b.field and not set(a.values) & set(b.values)
            if not apart:
                raise ConfigError(
                    f"{dimension.field} is searched twice, as {other.text} and {dimension.text}: "
                    "give it once, or under conditions that exclude each other"
                )
        if isinstance(config.task, MaskedConfig) and dimension.field in _DIFFICULTY:
            raise ConfigError(
                f"--search {dimension.text}: reconstruction losses at different "
                f"{dimension.field} cannot be compared; fine-tune a run of each instead"
            )


def _in_order(space: Sequence[Dimension]) -> tuple[Dimension, ...]:
    """As given, but each after those that its condition names.

    Raises:
        ConfigError: conditions in a circle.
    """
    left, done = list(space), list[Dimension]()
    while left:
        waiting = {dimension.field for dimension in left}
        free = next((d for d in left if d.when is None or d.when.field not in waiting), None)
        if free is None:
            raise ConfigError(f"--search {left[0].text}: its condition depends on itself")
        done.append(free)
        left.remove(free)
    return tuple(done)


def active(dimension: Dimension, values: dict[str, Any], config: TrainConfig) -> bool:
    """Whether a dimension is searched, given the `values` drawn before it."""
    if dimension.when is None:
        return True
    field = dimension.when.field
    return values.get(field, get_field(config, field)) in dimension.when.values


def draw(space: Sequence[Dimension], trial: Asks, config: TrainConfig) -> dict[str, Any]:
    """Ask for each field's value, in the order of the space."""
    values: dict[str, Any] = {}
    for one in space:
        if not active(one, values, config):
            continue
        if one.choices:
            # Optuna's choices are plain values, so tuples go as text.
            texts = {write_value(choice): choice for choice in one.choices}
            values[one.field] = texts[trial.suggest_categorical(one.name, list(texts))]
        elif one.whole:
            step = int(one.step) if one.step else 1
            values[one.field] = trial.suggest_int(
                one.name, int(one.low), int(one.high), step=step, log=one.log
            )
        else:
            value = trial.suggest_float(one.name, one.low, one.high, step=one.step, log=one.log)
            own = value == get_field(config, one.field) or one.step is not None
            values[one.field] = value if own else _three_digits(value, one)
    return values


def _three_digits(value: float, within: Dimension) -> float:
    """More would say nothing, and be copied from one command line to the next."""
    return min(max(float(f"{value:.3g}"), within.low), within.high)


def baseline(space: Sequence[Dimension], config: TrainConfig) -> dict[str, Any] | str:
    """The config's own values as parameters of a trial, by name; or why that is no point of the
    space.
    """
    values: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    for one in space:
        if not active(one, values, config):
            continue
        value = get_field(config, one.field)
        if not one.holds(value):
            return f"{one.field} {write_value(value)} is not in {one.text.partition('=')[2]}"
        values[one.field] = value
        parameters[one.name] = write_value(value) if one.choices else value
    return parameters


def put(config: TrainConfig, values: dict[str, Any]) -> TrainConfig:
    """The config with these fields changed.

    Where the learning rate is searched and its end, min_lr, is not, the end keeps its distance.

    Raises:
        ConfigError: values that contradict each other.
    """
    if "optim.lr" in values and "optim.min_lr" not in values:
        end = config.optim.min_lr * values["optim.lr"] / config.optim.lr
        values = {**values, "optim.min_lr": end}
    changed: TrainConfig = _put(config, {tuple(k.split(".")): v for k, v in values.items()})
    return changed


def _put(config: Any, values: dict[tuple[str, ...], Any]) -> Any:
    """All fields of a section at once: checks of one field against another see both."""
    here = {path[0]: value for path, value in values.items() if len(path) == 1}
    for section in {path[0] for path in values if len(path) > 1}:
        below = {p[1:]: value for p, value in values.items() if p[0] == section and len(p) > 1}
        here[section] = _put(getattr(config, section), below)
    return replace(config, **here)


def _or(values: Sequence[Any]) -> str:
    return " or ".join(write_value(value) for value in values)
