"""Masked video pretraining: reconstruct what the encoder did not see."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from matinee.data.batch import Batch
from matinee.data.transfer import send
from matinee.models.masked import MaskedAutoencoder
from matinee.models.masks import hidden_count, running_cell_mask, tube_mask
from matinee.tasks.base import Outcome, Task
from matinee.tasks.config import MaskedConfig


class MaskedTask(Task):
    """VideoMAE (arXiv 2203.12602); with `decode_ratio` below 1 dual masking (arXiv 2303.16727).

    A clip's mask depends on its seed alone: see Note [Masks by seed].
    """

    kind: ClassVar[str] = "masked"
    headline: ClassVar[str] = "loss"
    lower_is_better: ClassVar[bool] = True
    model: MaskedAutoencoder

    def __init__(self, model: MaskedAutoencoder, config: MaskedConfig) -> None:
        super().__init__()
        self.model, self.config = model, config
        cpu = torch.device("cpu")
        self.masks(torch.zeros(1, dtype=torch.int64, device=cpu), cpu)  # refuses a bad ratio

    def resize(self, *, frames: int, size: int) -> None:
        """As `Task.resize`; also refuses patches that the masks' ratios leave none of."""
        super().resize(frames=frames, size=size)
        self.masks(torch.zeros(1, dtype=torch.int64), torch.device("cpu"))

    def forward(self, batch: Batch) -> Outcome:
        """Mean squared error over hidden patches, summed over valid clips."""
        hidden, decoded = self.masks(batch.seeds, batch.video.device)
        each, _ = self.model(batch.video, hidden, decoded, counts=self.counts())
        zero = torch.zeros((), device=each.device)
        return Outcome(torch.where(batch.valid, each, zero).sum())

    def hidden_patches(self) -> tuple[int, int]:
        """How many patches of a frame are hidden, and how many there are."""
        patches = int(self.model.encoder.patch_embed.num_patches)
        return hidden_count(patches, self.config.mask_ratio), patches

    def counts(self) -> tuple[int, int]:
        """How many tokens of a clip are visible, and how many are decoded."""
        hidden, patches = self.hidden_patches()
        steps = self.model.frames // self.model.tubelet
        if self.config.decode_ratio == 1:
            return steps * (patches - hidden), steps * hidden
        return steps * (patches - hidden), round(steps * patches * self.config.decode_ratio)

    def masks(self, seeds: Tensor, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Hidden tokens, bool [B, N], and which of them are decoded (None: all)."""
        model, config = self.model, self.config
        rows, columns = model.encoder.patch_embed.grid_size
        steps = model.frames // model.tubelet
        seeds = send(seeds, device)
        hidden = tube_mask(steps, rows * columns, config.mask_ratio, seeds=seeds, device=device)
        if config.decode_ratio == 1:
            return hidden, None
        decoded = running_cell_mask(
            steps, (rows, columns), config.decode_ratio, seeds=seeds, device=device
        )
        return hidden, decoded
