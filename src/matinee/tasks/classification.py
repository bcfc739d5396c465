"""Single-label classification of clips."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from matinee.data.loader import Batch


@dataclass(frozen=True)
class Outcome:
    """Sums over the valid clips of a batch, on the device: `loss` (with gradient), `correct`."""

    loss: Tensor
    correct: Tensor


class ClassificationTask(nn.Module):
    """Cross-entropy over classes, with label smoothing (arXiv 1512.00567, §7)."""

    def __init__(self, model: nn.Module, *, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing

    def forward(self, batch: Batch) -> Outcome:
        """Loss and hits summed over valid clips; invalid clips weigh nothing.

        They still pass through the network, and so through batch normalisation's statistics: a
        masked batch stays the size it was.
        """
        logits = self.model(batch.video).float()
        each = F.cross_entropy(
            logits, batch.target, label_smoothing=self.label_smoothing, reduction="none"
        )
        zero = torch.zeros((), device=each.device)
        loss = torch.where(batch.valid, each, zero).sum()
        hits = (logits.argmax(dim=1) == batch.target) & batch.valid
        return Outcome(loss, hits.sum())

    @torch.no_grad()
    def predict(self, batch: Batch) -> Tensor:
        """Class probabilities, float32 [B, K]."""
        logits: Tensor = self.model(batch.video)
        return logits.float().softmax(dim=1)
