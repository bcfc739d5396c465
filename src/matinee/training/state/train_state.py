"""Everything a run must remember to go on exactly where it stopped."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from matinee.data.epochs import EpochLoader
from matinee.training.optim.ema import Ema
from matinee.training.optim.noise import NoiseScale
from matinee.training.parallel.ranks import Ranks
from matinee.training.parallel.whole import like, whole

_KERNELS = ("fused", "foreach", "capturable", "differentiable")


@dataclass
class TrainState:
    """The whole state of a run on its ranks, saved at the boundary between two steps.

    `step` steps are done, `skipped` of them without an update (fp16 overflows); `validated` epochs
    have been validated; `loss` and `sums` (of the task) are this rank's over the `clips` (of all
    ranks) since the last log line. `best` is the best validation so far: (its step, its value).
    `recent` holds, by step (from 0), what must be finite and the samples, since it was last looked
    at: on the device, so that no step waits for it. Randomness needs no state: it derives from the
    seed and the step.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    loader: EpochLoader
    ema: Ema | None = None
    noise: NoiseScale | None = None
    step: int = 0
    skipped: int = 0
    validated: int = 0
    best: tuple[int, float] | None = None
    loss: Tensor | None = None
    sums: dict[str, Tensor] = field(default_factory=dict)
    clips: int = 0
    masked: int = 0
    recent: dict[int, tuple[Tensor, tuple[str, ...]]] = field(default_factory=dict)

    @property
    def updates(self) -> int:
        """Steps that moved the weights; the schedule and the averages count these."""
        return self.step - self.skipped

    def averaged(self) -> AbstractContextManager[None]:
        """Within, the model has the averaged weights, if there are any."""
        return nullcontext() if self.ema is None else self.ema.applied(self.model)

    def state_dict(self, ranks: Ranks) -> dict[str, Any]:
        """Whole tensors, the same whatever the ranks; a collective. Only rank 0's is of use."""
        loss, sums = self.total(ranks)
        return {
            "model": whole(self.model.state_dict(), ranks),
            "optimizer": self._optimizer_state(ranks),
            "scaler": self.scaler.state_dict(),
            "ema": None
            if self.ema is None
            else {"updates": self.updates, "weights": whole(self.ema.state_dict(), ranks)},
            "noise": None if self.noise is None else self.noise.state_dict(),
            "loader": self.loader.state_dict(),
            "step": self.step,
            "skipped": self.skipped,
            "validated": self.validated,
            "best": self.best,
            "loss": loss,
            "sums": sums,
            "clips": self.clips,
            "masked": self.masked,
        }

    def _optimizer_state(self, ranks: Ranks) -> dict[str, Any]:
        if isinstance(self.optimizer, ZeroRedundancyOptimizer):
            self.optimizer.consolidate_state_dict(to=0)
            if not ranks.is_main:
                return {}
        state: dict[str, Any] = whole(self.optimizer.state_dict(), ranks)
        return state

    def total(self, ranks: Ranks) -> tuple[Tensor | None, dict[str, Tensor]]:
        """`loss` and `sums` over all ranks; a collective."""
        if self.loss is None or ranks.world == 1:
            return self.loss, self.sums
        names = sorted(self.sums)
        values = torch.stack([self.loss.double(), *(self.sums[name].double() for name in names)])
        loss, *sums = ranks.sum(values).unbind()
        return loss, dict(zip(names, sums, strict=True))

    def load_state_dict(self, state: dict[str, Any], ranks: Ranks) -> None:
        """Go on from what any number of ranks saved; sums since the last log line go to rank 0.

        Raises:
            ConfigError: the data are not those it was trained on.
        """
        device = ranks.device
        own = self.model.state_dict()
        self.model.load_state_dict(
            {name: like(v, own[name]) if name in own else v for name, v in state["model"].items()}
        )
        self._load_optimizer(state["optimizer"])
        if self.scaler.is_enabled() and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"]["weights"])
        if self.noise is not None:
            self.noise.load_state_dict(state["noise"], device)
        self.loader.load_state_dict(state["loader"])
        self.step, self.skipped = state["step"], state["skipped"]
        self.validated, self.best = state["validated"], state["best"]
        self.clips, self.masked = state["clips"], state["masked"]
        self.loss, self.sums = None, {}
        if state["loss"] is not None:
            keep = 1.0 if ranks.is_main else 0.0
            self.loss = state["loss"].to(device) * keep
            self.sums = {name: value.to(device) * keep for name, value in state["sums"].items()}

    def _load_optimizer(self, saved: dict[str, Any]) -> None:
        """Take over moments and rates, but not by which kernels another session moved the weights:
        fused ones neither take divided weights nor a count of steps that lies elsewhere.
        """
        groups = self.optimizer.param_groups
        kernels = [{name: g[name] for name in _KERNELS if name in g} for g in groups]
        self.optimizer.load_state_dict(self._divided(saved))
        for group, own in zip(self.optimizer.param_groups, kernels, strict=True):
            group.update(own)
        inner = self.optimizer
        if isinstance(inner, ZeroRedundancyOptimizer):  # which keeps a rank's share in another
            inner = inner.optim
        for group, own in zip(inner.param_groups, kernels, strict=True):
            group.update(own)
            for parameter in group["params"] if group.get("fused") else ():
                entry = inner.state.get(parameter, {})
                if isinstance(entry.get("step"), Tensor):
                    entry["step"] = entry["step"].to(parameter.device)

    def _divided(self, saved: dict[str, Any]) -> dict[str, Any]:
        """An optimizer's saved state with moments divided as their parameters are."""
        owners = [p for group in self.optimizer.param_groups for p in group["params"]]
        return {
            **saved,
            "state": {
                number: {
                    name: like(value, owners[number]) if isinstance(value, Tensor) else value
                    for name, value in entry.items()
                }
                for number, entry in saved["state"].items()
            },
        }
