"""Everything a run must remember to go on exactly where it stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from matinee.data.loader import ClipLoader


@dataclass
class TrainState:
    """The whole state of a run, saved at the boundary between two steps.

    `step` steps are done; `validated` epochs have been validated; `loss`, `correct` and `norms`
    (of gradients) are sums over the `clips` since the last log line. Randomness needs no state: it
    derives from the seed and the step.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: ClipLoader
    step: int = 0
    validated: int = 0
    loss: torch.Tensor | None = None
    correct: torch.Tensor | None = None
    norms: torch.Tensor | None = None
    clips: int = 0
    masked: int = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
            "step": self.step,
            "validated": self.validated,
            "loss": self.loss,
            "correct": self.correct,
            "norms": self.norms,
            "clips": self.clips,
            "masked": self.masked,
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        self.step, self.validated = state["step"], state["validated"]
        self.clips, self.masked = state["clips"], state["masked"]
        self.loss, self.correct, self.norms = (
            None if state[name] is None else state[name].to(device)
            for name in ("loss", "correct", "norms")
        )
