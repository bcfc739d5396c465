"""What the demos share: what they show while they go, and the folder they write."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from matinee.errors import ConfigError
from matinee.training.show.progress import Progress

_MARKER = ".matinee-demo"


class DemoView:
    """What a demo shows while it goes; the command line draws it."""

    def say(self, text: str) -> None:
        """A line about what comes next or came out."""

    def counting(self, name: str, unit: str) -> Any:
        """A context manager that gives `step(done, total, note="")`."""
        raise NotImplementedError

    def training(self, name: str) -> Progress | None:
        """Progress of a training run."""
        raise NotImplementedError


def fresh_folder(out: Path, ours: Collection[str]) -> None:
    """Make a folder for a demo, removing an earlier one there and nothing else: a marker tells.

    Args:
        ours: names of the files and folders that the demo writes.

    Raises:
        ConfigError: the folder holds something that no such demo wrote.
    """
    if out.exists() and any(out.iterdir()):
        names = {entry.name for entry in out.iterdir()}
        foreign = names - {*ours, _MARKER} if _MARKER in names else names
        if foreign:
            raise ConfigError(
                f"{out} holds {min(foreign)!r}, which no such demo wrote: choose another --out"
            )
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARKER).touch()
