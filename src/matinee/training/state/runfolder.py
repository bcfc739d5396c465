"""The folder of a run: config, environment, metrics, the newest checkpoint."""

from __future__ import annotations

import io
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from matinee import __version__
from matinee.errors import ConfigError, MatineeError, first_line
from matinee.files import naming, write_whole
from matinee.training.config import TrainConfig


class RunFolder:
    """Paths and files of one run. `rows` of metrics.jsonl are dicts with "kind" and "step"."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.checkpoint_file = self.path / "last.pt"

    def create(self, config: TrainConfig) -> None:
        """Start a run here.

        Raises:
            ConfigError: a run is here already.
        """
        if self.config_file.exists():
            raise ConfigError(
                f"{self.path} already holds a run: --resume continues it, another --out starts anew"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.config_file, (config.to_json() + "\n").encode())
        environment = {
            "matinee": __version__,
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "platform": platform.platform(),
            "cores": len(os.sched_getaffinity(0)),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "command": sys.argv,
        }
        (self.path / "environment.json").write_text(json.dumps(environment, indent=1) + "\n")

    def config(self) -> TrainConfig:
        """The saved config.

        Raises:
            ConfigError: no run here.
        """
        try:
            return TrainConfig.from_json(self.config_file.read_text())
        except FileNotFoundError:
            raise ConfigError(f"{self.path} is no run: it has no config.json") from None
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{self.config_file} is damaged: {error}") from None

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint: serialised in memory, written aside, flushed, renamed."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_whole(self.checkpoint_file, buffer.getbuffer())

    def load_checkpoint(self) -> dict[str, Any]:
        """The newest checkpoint, tensors on the CPU.

        Raises:
            MatineeError: there is none, or it is damaged.
        """
        try:
            state: dict[str, Any] = torch.load(
                self.checkpoint_file, map_location="cpu", weights_only=True
            )
        except FileNotFoundError:
            raise MatineeError(
                f"{self.path} has no checkpoint yet: train it, or resume it with --resume"
            ) from None
        except Exception as error:  # zip, pickle and torch errors have no common base
            raise MatineeError(f"{self.checkpoint_file} is damaged: {first_line(error)}") from None
        if not isinstance(state, dict) or not {"state", "vocabulary"} <= set(state):
            raise MatineeError(f"{self.checkpoint_file} is no checkpoint of matinee")
        return state

    def checkpoint_step(self) -> int | None:
        """How many steps the newest checkpoint has done, None without one."""
        if not self.checkpoint_file.exists():
            return None
        return int(self.load_checkpoint()["state"]["step"])

    def log(self, **row: Any) -> None:
        """Append one row to metrics.jsonl."""
        with naming(self.metrics_file), self.metrics_file.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; a half-written last line is left out."""
        rows = []
        if self.metrics_file.exists():
            for line in self.metrics_file.read_text().splitlines():
                try:
                    rows.append(json.loads(line))
                except ValueError:
                    break
        return rows

    def rewind(self, step: int, *, validated: bool) -> None:
        """Drop rows written after the checkpoint at `step`, which a resumed run writes again."""
        kept = [
            row
            for row in self.rows()
            if row["step"] < step or (row["step"] == step and (row["kind"] != "val" or validated))
        ]
        text = "".join(json.dumps(row) + "\n" for row in kept)
        write_whole(self.metrics_file, text.encode())
