"""The gradient noise scale: about the batch size beyond which larger ones stop paying."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class NoiseScale:
    """Moving estimates of tr(Σ), the variance of an item's gradient, and of |G|², the true one's.

    Each step's estimates come from the squared norms of gradients over a small and a big batch,
    and have the true values as expectations; their ratio has not, so both are averaged before one
    is divided by the other. Everything stays on the device.

    Source: An Empirical Model of Large-Batch Training, arXiv 1812.06162, appendix A.1.
    """

    def __init__(self, decay: float) -> None:
        """`decay`: the part of the averages that stays in each update."""
        if not 0 <= decay < 1:
            raise ValueError(f"a decay of {decay}: in [0, 1)")
        self.decay = decay
        self._averages: Tensor | None = None  # [2]: tr(Σ), |G|²

    def update(self, small_sq: Tensor, big_sq: Tensor, small: int, big: int) -> None:
        """Add a step.

        Args:
            small_sq, big_sq: squared norm of the mean gradient over `small` items, of a micro-batch
                (or the mean of such over several), and over the `big` ones of the whole step;
                0-dim. Steps whose norms are not finite count for nothing.

        Raises:
            ValueError: `small` is not less than `big`.
        """
        if not 0 < small < big:
            raise ValueError(f"batches of {small} and {big} items: the first must be the smaller")
        noise = (small_sq - big_sq) / (1 / small - 1 / big)
        signal = (big * big_sq - small * small_sq) / (big - small)
        now = torch.stack([noise, signal]).detach()
        before = torch.zeros_like(now) if self._averages is None else self._averages
        # From zero, both lack the same factor 1 - decay^n, which cancels in their ratio.
        mixed = torch.lerp(before, now, 1 - self.decay)
        self._averages = torch.where(now.isfinite().all(), mixed, before)

    def value(self) -> Tensor:
        """tr(Σ) / |G|² in items, 0-dim; NaN as long as no gradient stands out from the noise."""
        if self._averages is None:
            return torch.tensor(torch.nan)
        noise, signal = self._averages
        return torch.where(signal > 0, noise / signal, torch.nan)

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self._averages}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None = None) -> None:
        averages = state["averages"]
        self._averages = None if averages is None else averages.to(device, copy=True)
