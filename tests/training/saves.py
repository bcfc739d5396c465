"""A run's checkpoints, each with the numbers that its step must hold."""

from pathlib import Path

import torch

from matinee.training.state.checkpoints import Checkpoints


def state(step: int, numbers: int = 1000) -> dict:
    """What step `step` must hold, by a formula."""
    values = torch.arange(numbers, dtype=torch.float32) * step
    return {"state": {"step": step, "model": {"weight": values}}, "vocabulary": {}}


def saved(folder: Path, *steps: int, keep: int = 10) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep=keep)
    checkpoints.begin(0)
    for step in steps:
        checkpoints.save(state(step), step, wait=True)
    return checkpoints


def assert_holds(found: dict, step: int) -> None:
    assert found["state"]["step"] == step
    assert torch.equal(found["state"]["model"]["weight"], torch.arange(1000.0) * step)


def names(folder: Path) -> set[str]:
    return {found.name for found in folder.iterdir()}


def everything(folder: Path) -> dict[str, object]:
    """Every path with what it holds."""
    return {
        str(path.relative_to(folder)): path.readlink() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if not path.is_dir()
    }
