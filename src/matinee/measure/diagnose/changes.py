"""A change to a run, with what it is expected to save; and the ranking of several."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from matinee.errors import ConfigError
from matinee.training.config import TrainConfig

Basis = Literal["measured", "model", "published"]
SMALLEST = 0.01
"""Part of a step that a change must be expected to save."""


@dataclass(frozen=True)
class Change:
    """One change to a run.

    `what` says it; `stage` it is meant for; `saves`: expected seconds a step (None: not known
    before it is tried); `basis` of that figure, and `why` it should hold; `flags`: fields of the
    recipe to set, such as {"speed.precision": "bf16"}; `command`: what else to do; `pack`: settings
    of `make_profile` to pack anew with; `learns`: what is learned changes, beyond rounding.
    """

    what: str
    stage: str
    saves: float | None
    basis: Basis
    why: str
    flags: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    pack: Mapping[str, Any] | None = None
    learns: bool = False

    @property
    def how(self) -> str:
        """Flags or command, as typed in a shell."""
        words = [word for name, value in self.flags.items() for word in _typed(name, value)]
        return self.command or shlex.join(words)

    def apply(self, config: TrainConfig) -> TrainConfig:
        """The config with the flags set.

        Raises:
            ConfigError: values that contradict others.
        """
        for name, value in self.flags.items():
            config = _set(config, name.split("."), value)
        return config

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "flags": dict(self.flags), "how": self.how}


def _typed(name: str, value: Any) -> list[str]:
    """The words that set a field on the command line, as tyro takes them."""
    *sections, field_name = name.replace("_", "-").split(".")
    if isinstance(value, bool):
        return [f"--{'.'.join([*sections, field_name if value else f'no-{field_name}'])}"]
    values = value if isinstance(value, tuple) else (value,)
    return [f"--{'.'.join([*sections, field_name])}", *map(str, values)]


def _set(owner: Any, path: list[str], value: Any) -> Any:
    first, *rest = path
    if first not in {f.name for f in dataclasses.fields(owner)}:
        raise ConfigError(f"no setting {first!r} in {type(owner).__name__}")
    return replace(owner, **{first: _set(getattr(owner, first), rest, value) if rest else value})


def ranked(changes: Iterable[Change], step_s: float) -> tuple[Change, ...]:
    """Those that save most first, then those whose gain is not known; without trifles."""
    worth = [c for c in changes if c.saves is None or c.saves >= SMALLEST * step_s]
    return tuple(sorted(worth, key=lambda c: -1.0 if c.saves is None else c.saves, reverse=True))
