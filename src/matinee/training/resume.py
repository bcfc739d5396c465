"""Going on with a run: what must be the same, and what may change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from matinee.errors import ConfigError, MatineeError
from matinee.pack.open import DataSet
from matinee.training.config import TrainConfig
from matinee.training.parallel.ranks import Ranks
from matinee.training.setup import Setup
from matinee.training.state.runfolder import RunFolder

_FIXED = (
    "model.", "task.", "clip.", "optim.", "data.train_split", "data.val_split", "data.repeats",
    "data.crops", "speed.stages", "parallel.sync_bn", "run.seed",
)  # fmt: skip
"""Sections and fields that decide what is learned."""
_MAY_CHANGE = "optim.accumulate"


@dataclass(frozen=True)
class Found:
    """A checkpoint's content, the epoch (from 0) that its loader stands in, and what to say."""

    content: dict[str, Any]
    notes: tuple[str, ...]

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.content["state"]
        return state

    @property
    def epoch(self) -> int:
        return int(self.state["loader"]["epoch"])


def find_state(folder: RunFolder, config: TrainConfig, pack: DataSet, ranks: Ranks) -> Found | None:
    """The checkpoint to go on from; None if the run was stopped before its first save.

    The number of ranks, `accumulate` and what makes a run fast may be others than before.

    Raises:
        ConfigError: other settings, or another pack.
        MatineeError: no checkpoint can be read.
    """
    check_settings(folder, config)
    content, notes = None, list[str]()
    if folder.checkpoint_step() is not None:
        content, notes = folder.checkpoints.load()
    # None on all ranks or on none, and of one step: a file system may show each something else.
    steps = ranks.everyone(-1 if content is None else int(content["state"]["step"]))
    if len(set(steps)) > 1:
        raise MatineeError(
            f"ranks read checkpoints of different steps in {folder.path}, {min(steps)} to "
            f"{max(steps)}: look at the file system it is on, which all ranks must share"
        )
    if content is None:
        return None
    if content.get("source_digest") != pack.meta.get("source_digest"):
        raise ConfigError(
            f"{folder.path} was trained on another pack than {pack.path} (other videos, samples or "
            "encoding): resume with that, or start anew with another --out"
        )
    return Found(content, (*notes, *changes(folder, config)))


def begun_here(folder: RunFolder) -> bool:
    """Whether the run was begun or resumed by the launch that has now restarted its ranks; another
    one's run is not to be gone on with unasked.
    """
    launch = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    ids = [s.get("launcher", {}).get("TORCHELASTIC_RUN_ID") for s in folder.sessions()]
    return launch != "none" and launch in ids


def check_settings(folder: RunFolder, config: TrainConfig) -> None:
    """Refuse to go on with settings that would make it another run."""
    for name, before, now in differences(folder.config().to_dict(), config.to_dict()):
        if name.startswith(_FIXED) and name != _MAY_CHANGE:
            raise ConfigError(
                f"{folder.path} was started with {name} {before!r}, not {now!r}: resume with the "
                "same, or start anew with another --out"
            )


def differences(
    before: dict[str, Any], now: dict[str, Any], path: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Fields of two configs that differ, by name: dotted name, value before and now."""
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from differences(old, new, f"{path}{name}.")
        elif old != new:
            yield f"{path}{name}", old, new


def changes(folder: RunFolder, config: TrainConfig) -> list[str]:
    """A sentence on settings that are others than before, and may be."""
    found = [
        f"{name} {now!r} (was {before!r})"
        for name, before, now in differences(folder.config().to_dict(), config.to_dict())
        if name.startswith(("speed.", "parallel.", _MAY_CHANGE))
    ]
    return [f"other settings than at the start: {', '.join(found)}"] if found else []


def check_vocabulary(found: Found, setup: Setup, folder: RunFolder) -> None:
    """Refuse a pack with other classes."""
    if found.content["vocabulary"] != setup.vocabulary.to_dict():
        raise ConfigError(f"{folder.path} was trained on other classes than this pack has")
