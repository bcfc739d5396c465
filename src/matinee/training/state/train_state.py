"""Everything a run must remember to go on exactly where it stopped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from matinee.data.epochs import EpochLoader


@dataclass
class TrainState:
    """The whole state of a run, saved at the boundary between two steps.

    `step` steps are done; `validated` epochs have been validated; `loss` and `sums` (of the task)
    are over the `clips` since the last log line. `first_bad` is the first step (from 0) whose loss
    or gradient was not finite, -1 as long as there is none, on the device so that no step waits for
    it; `recent` holds the samples of the steps since it was last looked at.
    Randomness needs no state: it derives from the seed and the step.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: EpochLoader
    step: int = 0
    validated: int = 0
    loss: torch.Tensor | None = None
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    clips: int = 0
    masked: int = 0
    first_bad: torch.Tensor | None = None
    recent: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
            "step": self.step,
            "validated": self.validated,
            "loss": self.loss,
            "sums": self.sums,
            "clips": self.clips,
            "masked": self.masked,
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        self.step, self.validated = state["step"], state["validated"]
        self.clips, self.masked = state["clips"], state["masked"]
        self.sums = {name: value.to(device) for name, value in state["sums"].items()}
        self.loss = None if state["loss"] is None else state["loss"].to(device)
