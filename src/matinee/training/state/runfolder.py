"""The folder of a run: settings, environment, metrics, checkpoints."""

from __future__ import annotations

import json
import re
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

from matinee.errors import ConfigError
from matinee.files import naming, remove_asides, write_whole
from matinee.training.config import TrainConfig
from matinee.training.state.checkpoints import Checkpoints, DamagedCheckpoint, Name
from matinee.training.state.environment import describe_environment

_FILES = re.compile(r"config\.json|environment\.json|metrics\.jsonl")


class RunFolder:
    """Paths and files of one run. `rows` of metrics.jsonl are dicts with "kind" and "step".

    Reading changes nothing; `create` and `resume` start a session that writes.

    Args:
        keep: checkpoints that stay, see `Checkpoints`.
    """

    def __init__(self, path: str | Path, *, keep: int = 2) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.environment_file = self.path / "environment.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.checkpoint_file = self.path / "last.pt"
        self._keep = keep

    @cached_property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.path, keep=self._keep)

    def check_new(self) -> None:
        """Refuse to start where a run is.

        Raises:
            ConfigError: a run is here already, or what is left of one.
        """
        if self.config_file.exists():
            raise ConfigError(
                f"{self.path} already holds a run: --resume continues it, another --out starts anew"
            )
        if self.checkpoint_file.exists() or self.checkpoints.steps():
            raise ConfigError(
                f"{self.path} holds checkpoints but no config.json: put it back to resume, or take "
                "another --out"
            )

    def create(self, config: TrainConfig) -> None:
        """Start a run here.

        Raises:
            ConfigError: as `check_new`; or the file system has no symbolic links.
        """
        self.check_new()
        self.path.mkdir(parents=True, exist_ok=True)
        remove_asides(self.path, _FILES)
        self.checkpoints.begin(step, best=best)

    def _write_environment(self, environment: dict[str, Any]) -> None:
        write_whole(self.environment_file, (json.dumps(environment, indent=1) + "\n").encode())
