"""Classification of clips: one label, several, or a verb and a noun."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from matinee.data.batch import Batch
from matinee.data.mix import mix, plan_mix, swap_neighbours
from matinee.tasks.base import Outcome, Task
from matinee.tasks.config import ClassificationConfig


class ClassificationTask(Task):
    """Cross-entropy over classes (binary, for several labels a clip), with label smoothing
    (arXiv 1512.00567, §7), Mixup and CutMix.
    """

    kind: ClassVar[str] = "classification"
    headline: ClassVar[str] = "top1"

    def __init__(self, model: nn.Module, config: ClassificationConfig | None = None) -> None:
        super().__init__()
        self.model, self.config = model, config or ClassificationConfig()

    def forward(self, batch: Batch) -> Outcome:
        """Loss and hits summed over valid clips.

        `top1` counts a clip whose most probable class is its own (with several labels: one of
        them). Mixed clips count by the label that keeps the larger part; see
        Note [Mixing in pairs].

        Raises:
            ConfigError: clips are to be mixed, and there is an odd number of them.
        """
        config, video = self.config, batch.video
        keep: Tensor | None = None
        if self.training and (config.mixup or config.cutmix):
            seeds = batch.seeds.numpy()  # on the CPU: waits for nothing
            pairs = plan_mix(
                seeds, mixup=config.mixup, cutmix=config.cutmix,
                probability=config.mix_probability, cutmix_share=config.cutmix_share,
            )  # fmt: skip
            video, keep = mix(video, pairs, batch.valid)
        logits = _at_least_float32(self.model(video))
        targets = _one_hot(batch.target, logits)
        if keep is not None:
            targets = torch.lerp(swap_neighbours(targets), targets, keep.to(targets)[:, None])
        if config.labels == "multi":
            each = F.binary_cross_entropy_with_logits(
                logits, self._smooth(targets, 0.5), reduction="none"
            ).mean(dim=1)
        else:
            each = -(self._smooth(targets, 1 / logits.shape[1]) * logits.log_softmax(1)).sum(1)
        zero = torch.zeros((), dtype=each.dtype, device=each.device)
        best = logits.argmax(dim=1)
        strongest = targets.amax(dim=1)
        hits = (targets.gather(1, best[:, None])[:, 0] == strongest) & (strongest > 0)
        return Outcome(
            torch.where(batch.valid, each, zero).sum(), {"top1": (hits & batch.valid).sum()}
        )

    def _smooth(self, targets: Tensor, even: float) -> Tensor:
        return torch.lerp(targets, torch.full_like(targets, even), self.config.label_smoothing)

    @torch.no_grad()
    def logits(self, batch: Batch) -> Tensor:
        """Scores before normalisation, [B, K] in float32 or better."""
        return _at_least_float32(self.model(batch.video))

    def probabilities(self, logits: Tensor) -> Tensor:
        """Of each class, float [B, K]: they sum to one unless a clip has several labels."""
        return logits.sigmoid() if self.config.labels == "multi" else logits.softmax(dim=1)


def _at_least_float32(logits: Tensor) -> Tensor:
    """Out of the half precision that autocast leaves; float64 stays."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _one_hot(target: Tensor, logits_BK: Tensor) -> Tensor:
    """Class indices [B] as targets like the logits; a clip without label (-1) has none."""
    if target.is_floating_point():
        return target.to(logits_BK.dtype)
    classes = torch.arange(logits_BK.shape[1], device=target.device)
    return (target[:, None] == classes).to(logits_BK.dtype)
