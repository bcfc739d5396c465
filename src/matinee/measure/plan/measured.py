"""Measurements of one's own machine in the place of assumptions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matinee.errors import ConfigError
from matinee.measure.plan.collective import Link
from matinee.measure.plan.jitter import Measured


def read_all_reduce(path: Path) -> Link:
    """α and β of the most ranks that `matinee bench allreduce` measured with a core each.

    Raises:
        ConfigError: the file is missing, or no such measurement.
    """
    content = _read("--all-reduce", path)
    try:
        fit = max(content["fits"], key=_worth)
        alpha, beta = float(fit["alpha_s"]), float(fit["beta_s_per_byte"])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConfigError(
            f"--all-reduce {path} holds no fits with alpha_s and beta_s_per_byte: give the JSON of "
            "matinee bench allreduce"
        ) from None
    if not (0 <= alpha < 10 and 0 < beta < 1):
        raise ConfigError(f"--all-reduce {path}: {alpha} s a hop and {beta} s a byte cannot be")
    return Link(alpha, 1 / beta)


def read_steps(path: Path) -> Measured:
    """Step times of ranks: those that `matinee bench scaling` measured of the most ranks without
    communication, or a JSON object with a list `step_seconds`.

    Raises:
        ConfigError: the file is missing, or holds no step times.
    """
    content = _read("--jitter", path)
    try:
        steps = content.get("step_seconds")
        if steps is None:
            rows = content["measured"]
            steps = max(rows, key=_worth)["compute_step_seconds"]
        values = [float(x) for part in steps for x in (part if isinstance(part, list) else [part])]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError(
            f"--jitter {path} holds no step times: give the JSON of matinee bench scaling, an "
            'object {"step_seconds": [0.31, 0.32, …]}, or lognormal:0.1'
        ) from None
    return Measured.of(values)


def _worth(row: Mapping[str, Any]) -> tuple[bool, int]:
    """Of a measurement: ranks that shared cores waited for those, and not for each other."""
    return not row.get("crowded", False), int(row["ranks"])


def _read(flag: str, path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        hint = " (or lognormal:0.1)" if flag == "--jitter" else ""
        raise ConfigError(f"{flag} {path}: {error.strerror}{hint}") from None
    except ValueError as error:
        raise ConfigError(f"{flag} {path} is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{flag} {path} holds no object")
    return content
