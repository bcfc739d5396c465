"""What every video network is to the rest: clips in, features or logits out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of RGB (0–1) that a network expects."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class VideoModel(nn.Module, ABC):
    """A network for clips of `frames` frames with `num_features` features before its classifier."""

    frames: int
    num_features: int

    @abstractmethod
    def forward(self, video_BCTHW: Tensor, *, features: bool = False) -> Tensor:
        """Float [B, 3, T, H, W] → logits [B, K], or pooled features [B, D]."""

    def embed(self, video_BCTHW: Tensor) -> Tensor:
        """Float [B, 3, T, H, W] → pooled features [B, D].

        By way of the module's call, which `torch.compile` and hooks stand around.
        """
        features: Tensor = self(video_BCTHW, features=True)
        return features

    def check_frames(self, video_BCTHW: Tensor) -> None:
        """Refuse a clip of another length.

        Raises:
            ValueError: T is not `frames`.
        """
        if video_BCTHW.shape[2] != self.frames:
            raise ValueError(
                f"a clip of {video_BCTHW.shape[2]} frames for a network made for {self.frames}"
            )
