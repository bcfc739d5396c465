"""Stopping before something that is not finite is logged or saved."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from matinee.errors import MatineeError
from matinee.training.parallel.ranks import Ranks
from matinee.training.state.runfolder import RunFolder
from matinee.training.state.train_state import TrainState


def check_finite(state: TrainState, ranks: Ranks, folder: RunFolder) -> None:
    """Stop if a loss or gradient was not finite, naming the step (from 1) and its clips.

    A collective; a loss can be bad on one rank alone.
    """
    if not state.recent:
        return
    steps = list(state.recent)
    finite = torch.stack([value for value, _ in state.recent.values()]).isfinite()
    first = len(steps) if finite.all() else int(finite.int().argmin())
    first = min(ranks.everyone(first))
    if first < len(steps):
        step = steps[first]
        samples = [name for own in ranks.everyone(state.recent[step][1]) for name in own]
        more = f" and {len(samples) - 16} more" if len(samples) > 16 else ""
        raise MatineeError(
            f"the loss or its gradient is not finite in step {step + 1}, on samples "
            f"{', '.join(samples[:16])}{more}: lower --optim.lr, set --optim.clip-norm, or look at "
            f"these samples; {_last_finite(folder)}"
        )
    state.recent.clear()


def check_weights(state: TrainState, folder: RunFolder) -> None:
    """Stop before weights that are not finite are saved: a step can be too far for their range."""
    own = [p.to_local() if isinstance(p, DTensor) else p for p in state.model.parameters()]
    if not torch.stack([p.isfinite().all() for p in own]).all():
        raise MatineeError(
            f"weights are not finite after step {state.step}, though the loss still was: lower "
            f"--optim.lr or set --optim.clip-norm; {_last_finite(folder)}"
        )


def _last_finite(folder: RunFolder) -> str:
    held = folder.checkpoint_step()
    if held is None:
        return f"there is no checkpoint yet: remove {folder.path}, or take another --out"
    return (
        f"the last checkpoint, {folder.checkpoint_file}, is from step {held} and finite: start "
        f"another run from it with --model.pretrained {folder.checkpoint_file}"
    )
