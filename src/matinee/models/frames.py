"""A timm image network on the frames of a clip, in one batch; their logits are averaged."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from matinee.models.base import VideoModel
from matinee.models.batch_norm import freeze_batch_norm


class FrameModel(VideoModel):
    """Image network on every frame, logits averaged over frames (TSN's segment consensus).

    Temporal shift or inflated convolutions inside the backbone let frames see each other.
    `channels_last` says how frames lie in memory (`matinee.models.layout`).

    Args:
        fixed_size: pixels that the backbone is bound to; None: it takes any.

    Source: TSN, arXiv 1608.00859, §3.1.
    """

    backbone: Any
    channels_last = False

    def __init__(
        self,
        backbone: nn.Module,
        frames: int,
        *,
        partial_bn: bool = False,
        fixed_size: int | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.frames, self.partial_bn = backbone, frames, partial_bn
        self.fixed_size = fixed_size
        self.num_features = int(self.backbone.head_hidden_size)
        if partial_bn:
            freeze_batch_norm(backbone)

    def train(self, mode: bool = True) -> FrameModel:
        """Training mode, but for the batch normalisation that partial BN leaves alone."""
        super().train(mode)
        if self.partial_bn:
            freeze_batch_norm(self.backbone)
        return self

    def forward(self, video_BCTHW: Tensor, *, features: bool = False) -> Tensor:
        """Float [B, 3, T, H, W] → logits [B, K], or pooled features [B, D]; means over frames."""
        self.check_frames(video_BCTHW)
        images = self._images(video_BCTHW)
        if features:
            maps = self.backbone.forward_features(images)
            rows = self.backbone.forward_head(maps, pre_logits=True)
        else:
            rows = self.backbone(images)
        return _mean(rows, video_BCTHW)

    def _images(self, video_BCTHW: Tensor) -> Tensor:
        """[B·T, 3, H, W], frames of a clip adjacent."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return video_BCTHW.transpose(1, 2).flatten(0, 1).contiguous(memory_format=layout)


def _mean(rows: Tensor, video_BCTHW: Tensor) -> Tensor:
    """Rows of all frames (fewer after temporal pooling) to means of clips."""
    return rows.view(len(video_BCTHW), -1, rows.shape[-1]).mean(dim=1)
