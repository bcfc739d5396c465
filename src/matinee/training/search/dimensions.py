"""One field of the config and where to look for it: `optim.lr=1e-4..1e-1:log if optim.name=sgd`."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from matinee.errors import ConfigError
from matinee.training.config import TrainConfig

_FORM = "expected FIELD=LOW..HIGH[:log|:STEP] or FIELD=VALUE,VALUE[,VALUE…], then ` if FIELD=VALUE`"
_SECTIONS = ("model", "task", "clip", "optim")
_SEARCHED = "model, task, clip and optim, data.repeats and data.crops"


@dataclass(frozen=True)
class Condition:
    """Search a dimension only where `field` has one of `values`."""

    field: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Dimension:
    """A field with its `choices`, or a range from `low` to `high`, both included.

    `log`: evenly in the logarithm; `step`: only every `step`-th number from `low`.
    """

    field: str
    choices: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    whole: bool = False
    when: Condition | None = None
    why: str = ""

    @property
    def name(self) -> str:
        """Unique in a space: the field, and under which condition."""
        return self.field + (f" if {_told(self.when)}" if self.when else "")

    @property
    def text(self) -> str:
        """As it is given to --search."""
        if self.choices:
            range_ = ",".join(write_value(value) for value in self.choices)
        else:
            how = ":log" if self.log else f":{self.step:g}" if self.step else ""
            range_ = f"{write_value(self.low)}..{write_value(self.high)}{how}"
        return f"{self.field}={range_}" + (f" if {_told(self.when)}" if self.when else "")

    def holds(self, value: Any) -> bool:
        """Whether the range has this value."""
        if self.choices:
            return bool(value in self.choices)
        if value is None or not self.low <= value <= self.high:
            return False
        steps = (value - self.low) / self.step if self.step else 0.0
        return bool(abs(steps - round(steps)) < 1e-9)

    def drawn(self, values: dict[str, Any]) -> bool:
        """Whether a trial with these values, by field, drew one from here."""
        if self.field not in values:
            return False
        return self.when is None or values.get(self.when.field) in self.when.values

    def part(self, value: Any) -> float:
        """Where in the range a value is, from 0 to 1; of choices always in the middle."""
        if self.choices:
            return 0.5
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return float((value - self.low) / (self.high - self.low))


def parse_dimension(text: str, config: TrainConfig) -> Dimension:
    """Read a dimension, by the type that the field has in `config`.

    Raises:
        ConfigError: no such field, one that cannot be searched, or values it cannot have.
    """
    said = f"--search {text}"
    given, _, condition = text.partition(" if ")
    field, values = _split(given, said)
    hint = field_type(config, field, said)
    bounds = re.fullmatch(r"([^,]+?)\.\.([^,:]+)(?::([^,]+))?", values)
    if bounds is None:
        choices = tuple(read_value(part.strip(), hint, said) for part in values.split(","))
        if len(set(choices)) < len(choices):
            raise ConfigError(f"{said}: the same value twice")
        dimension = Dimension(field, choices)
    else:
        dimension = _range(field, hint, *bounds.groups(), said=said)
    if not condition:
        return dimension
    other, values = _split(condition, said)
    kind = field_type(config, other, said)
    wanted = tuple(read_value(part.strip(), kind, said) for part in values.split(","))
    return replace(dimension, when=Condition(other, wanted))


def _split(text: str, said: str) -> tuple[str, str]:
    field, equals, values = (part.strip() for part in text.partition("="))
    if not (field and equals and values):
        raise ConfigError(f"{said}: {_FORM}")
    return field.replace("-", "_"), values


def _range(field: str, hint: Any, low: str, high: str, how: str | None, *, said: str) -> Dimension:
    kinds = [kind for kind in _members(hint) if kind in (int, float)]
    if not kinds:
        raise ConfigError(f"{said}: {field} takes no numbers: list its values, separated by commas")
    whole = kinds[0] is int
    first, last = read_value(low, kinds[0], said), read_value(high, kinds[0], said)
    log, step = how == "log", None
    if how is not None and not log:
        step = read_value(how, kinds[0], said)
        if step <= 0:
            raise ConfigError(f"{said}: a step of {step:g}")
    if not first < last:
        raise ConfigError(f"{said}: an empty range: needs LOW < HIGH")
    if log and first <= 0:
        raise ConfigError(f"{said}: a logarithmic range starts above 0, not at {first:g}")
    if step is not None:  # the last number that steps reach
        last = first + math.floor((last - first) / step + 1e-9) * step
        if not first < last:
            raise ConfigError(f"{said}: the step {step:g} is larger than the range")
    return Dimension(field, (), first, last, log, step, whole)


def field_type(config: TrainConfig, field: str, said: str) -> Any:
    """The type of a field by its dotted name; where a section has one of several kinds, of the kind
    that `config` has.

    Raises:
        ConfigError: no such field, or one that cannot be searched; begins with `said`.
    """
    at: Any = config
    *path, last = field.split(".")
    for part in path:
        at = getattr(at, part, None)
    known = set(searchable(config))
    if dataclasses.is_dataclass(at) and field in known:
        return typing.get_type_hints(type(at), include_extras=True)[last]
    if dataclasses.is_dataclass(at) and hasattr(at, last):
        raise ConfigError(f"{said}: {field} cannot be searched, only fields of {_SEARCHED} can")
    near = difflib.get_close_matches(field, known, 1, 0.4)
    meant = f": did you mean {near[0]}?" if near else ""
    raise ConfigError(f"{said}: no field {field}{meant}")


def searchable(config: TrainConfig) -> list[str]:
    """Dotted names of all fields that a search may change."""
    names = ["data.repeats", "data.crops"]
    for section in _SECTIONS:
        names += [f"{section}.{name}" for name in _leaves(getattr(config, section))]
    return names


def _leaves(value: Any) -> list[str]:
    names = []
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if dataclasses.is_dataclass(inner):
            names += [f"{field.name}.{name}" for name in _leaves(inner)]
        else:
            names.append(field.name)
    return names


def get_field(config: Any, field: str) -> Any:
    for part in field.split("."):
        config = getattr(config, part)
    return config


def write_value(value: Any) -> str:
    """A value as --search and the command line take it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(write_value(part) for part in value)
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def _told(condition: Condition) -> str:
    return f"{condition.field}={','.join(write_value(value) for value in condition.values)}"


def _members(hint: Any) -> tuple[Any, ...]:
    """The types that a value may have; several for `float | None`."""
    if typing.get_origin(hint) is Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def read_value(text: str, hint: Any, said: str) -> Any:
    """Read a value as `write_value` writes it, of the type that a field is declared with.

    Raises:
        ConfigError: no value of that type; begins with `said`.
    """
    members = _members(hint)
    if text.lower() == "none" and type(None) in members:
        return None
    (kind, *_) = [member for member in members if member is not type(None)]
    if typing.get_origin(kind) is Literal:
        options = {str(option): option for option in typing.get_args(kind)}
        if text not in options:
            raise ConfigError(f"{said}: {text!r} is none of {', '.join(options)}")
        return options[text]
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)
        parts = text.split()
        if inner[-1] is not Ellipsis and len(parts) != len(inner):
            raise ConfigError(f"{said}: {text!r} needs {len(inner)} numbers with spaces between")
        return tuple(read_value(part, inner[0], said) for part in parts)
    if kind is bool:
        if text not in ("true", "false"):
            raise ConfigError(f"{said}: {text!r} is neither true nor false")
        return text == "true"
    try:
        value = kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{said}: {text!r} is not {wanted}") from None
    if kind is float and not math.isfinite(value):
        raise ConfigError(f"{said}: {text!r} is not finite")
    return value
