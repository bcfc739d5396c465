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
        self._begin(0)
        write_whole(self.config_file, (config.to_json() + "\n").encode())
        self._write_environment(describe_environment())

    def resume(self, step: int, *, validated: bool, best: int | None = None) -> None:
        """Start another session of the run, from its checkpoint at `step` (0: from the start).

        `best` is the step of its best checkpoint so far.

        Raises:
            ConfigError: environment.json or metrics.jsonl is damaged; or the file system has no
                symbolic links.
        """
        self._begin(step, best)
        self.rewind(step, validated=validated)
        first, *resumed = self.sessions() or [{}]
        resumed.append({"step": step, **describe_environment()})
        self._write_environment({**first, "resumed": resumed})

    def config(self) -> TrainConfig:
        """The saved config.

        Raises:
            ConfigError: no run here.
        """
        try:
            return TrainConfig.from_json(self.config_file.read_text())
        except FileNotFoundError:
            raise ConfigError(f"{self.path} is no run: it has no config.json") from None
        except (ValueError, TypeError, ConfigError) as error:
            raise ConfigError(f"{self.config_file} is damaged: {error}") from None

    def sessions(self) -> list[dict[str, Any]]:
        """What the run ran on: the environment of its start, and of each time it was resumed, with
        the `step` it went on from. environment.json holds the first, and the others in "resumed".

        Raises:
            ConfigError: environment.json is damaged.
        """
        try:
            first = json.loads(self.environment_file.read_text())
            resumed = first.pop("resumed", [])
            return [first, *resumed]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self.environment_file} is damaged: {error}: remove it to go on without"
            ) from None

    def save_checkpoint(
        self, state: dict[str, Any], *, best: bool = False, wait: bool = True
    ) -> None:
        """Save the state after `state["state"]["step"]` steps; see `Checkpoints.save`."""
        self.checkpoints.save(state, int(state["state"]["step"]), best=best, wait=wait)

    def load_checkpoint(self, name: Name = "last") -> dict[str, Any]:
        """The newest checkpoint (or the best), tensors on the CPU.

        Warns:
            DamagedCheckpoint: it is damaged, and an older one is used instead.

        Raises:
            MatineeError: there is none, or none that can be read.
        """
        state, notes = self.checkpoints.load(name)
        for note in notes:
            warnings.warn(note, DamagedCheckpoint, stacklevel=2)
        return state

    def checkpoint_step(self) -> int | None:
        """How many steps the newest checkpoint has done, None without one; quick."""
        return self.checkpoints.step()

    def log(self, **row: Any) -> None:
        """Append one row to metrics.jsonl."""
        with naming(self.metrics_file), self.metrics_file.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; a half-written last line is left out.

        Raises:
            ConfigError: another line is damaged.
        """
        return [row for _, row in self._lines()]

    def rewind(self, step: int, *, validated: bool) -> None:
        """Drop rows written after the checkpoint at `step`, which a resumed run writes again."""
        kept = [
            line + "\n"
            for line, row in self._lines()
            if row["step"] < step or (row["step"] == step and (row["kind"] != "val" or validated))
        ]
        write_whole(self.metrics_file, "".join(kept).encode())

    def _lines(self) -> list[tuple[str, dict[str, Any]]]:
        """Lines and what they hold. A kill can cut the last one short, and only that."""
        try:
            text = self.metrics_file.read_bytes().decode(errors="replace")
        except FileNotFoundError:
            return []
        lines = text[: text.rfind("\n") + 1].split("\n")[:-1]
        try:
            rows = json.loads(f"[{','.join(lines)}]")  # all at once is quicker than one by one
        except ValueError:
            rows = []
        if len(rows) != len(lines):
            rows = [self._row(number, line) for number, line in enumerate(lines, 1)]
        return list(zip(lines, rows, strict=True))

    def _row(self, number: int, line: str) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            raise ConfigError(
                f"{self.metrics_file} is damaged in line {number} ({error}): remove that line"
            ) from None

    def _begin(self, step: int, best: int | None = None) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        remove_asides(self.path, _FILES)
        self.checkpoints.begin(step, best=best)

    def _write_environment(self, environment: dict[str, Any]) -> None:
        write_whole(self.environment_file, (json.dumps(environment, indent=1) + "\n").encode())
