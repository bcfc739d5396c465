"""The command line of a config: what differs from a recipe, as flags."""

from __future__ import annotations

import dataclasses
from typing import Any

from matinee.training.config import TrainConfig


def flags(config: TrainConfig, start: TrainConfig) -> list[str]:
    """Arguments that turn `start` into `config`, one flag a field.

    Both have the same kinds of sections, which flags cannot change.
    """
    found: list[str] = []
    for section in dataclasses.fields(config):
        name = section.name
        found += _changed(getattr(config, name), getattr(start, name), f"--{name}")
    return found


def _changed(value: Any, start: Any, flag: str) -> list[str]:
    if dataclasses.is_dataclass(value):
        assert type(value) is type(start), f"{flag}: {start} became {value}"
        found: list[str] = []
        for field in dataclasses.fields(value):
            name = field.name.replace("_", "-")
            inner = getattr(value, field.name), getattr(start, field.name)
            found += _changed(*inner, f"{flag}.{name}")
        return found
    if value == start:
        return []
    if isinstance(value, bool):
        section, _, name = flag.rpartition(".")
        return [flag if value else f"{section}.no-{name}"]
    if isinstance(value, tuple):
        return [flag, *(str(part) for part in value)]
    return [flag, str(value)]
