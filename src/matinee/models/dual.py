"""A video tower and a text tower that end in one space, where a clip lies near its caption."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from matinee.errors import ConfigError
from matinee.models.base import VideoModel
from matinee.models.text import TextTower

MAX_SCALE = 100.0
"""CLIP never divides by a temperature below 1/100."""


class DualEncoder(nn.Module):
    """Clips and texts as unit vectors [B, E]; their dot products are the similarities.

    Args:
        temperature: similarities are divided by it in the loss; at least 0.01.
        learn_temperature: train its logarithm too; otherwise it stays.

    Raises:
        ConfigError: a temperature that CLIP's limit would change.
    Source: CLIP, arXiv 2103.00020, §2.3–2.5.
    """

    logit_scale: Tensor

    def __init__(
        self,
        video: VideoModel,
        text: TextTower,
        *,
        embed_dim: int = 256,
        temperature: float = 0.07,
        learn_temperature: bool = True,
    ) -> None:
        super().__init__()
        if not temperature >= 1 / MAX_SCALE:
            raise ConfigError(
                f"a temperature of {temperature}: at least {1 / MAX_SCALE}, CLIP's limit"
            )
        self.video, self.text = video, text
        self.video_projection = _projection(video.num_features, embed_dim)
        self.text_projection = _projection(text.width, embed_dim)
        logit_scale = torch.tensor(math.log(1 / temperature))
        if learn_temperature:
            self.logit_scale = nn.Parameter(logit_scale)
        else:
            self.register_buffer("logit_scale", logit_scale)

    def embed_video(self, video_BCTHW: Tensor) -> Tensor:
        """Float [B, 3, T, H, W] → unit vectors [B, E], at least float32."""
        return _unit(self.video.embed(video_BCTHW) @ self.video_projection)

    def embed_text(self, ids: Tensor) -> Tensor:
        """The text tower's ids [B, L] → unit vectors [B, E], at least float32."""
        return _unit(self.text(ids) @ self.text_projection)

    def scale(self) -> Tensor:
        """1 / temperature, a scalar with gradient.

        The limit is applied to the parameter itself, as CLIP does after each step: a limit on the
        value alone has no gradient beyond, and the parameter would never come back.
        """
        if isinstance(self.logit_scale, nn.Parameter):
            with torch.no_grad():
                self.logit_scale.clamp_(max=math.log(MAX_SCALE))
        return self.logit_scale.exp()

    def forward(self, video_BCTHW: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Unit vectors of clips and of texts [B, E], and 1 / temperature."""
        return self.embed_video(video_BCTHW), self.embed_text(ids), self.scale()


def _projection(width: int, embed_dim: int) -> nn.Parameter:
    """[width, E], standard deviation width^-1/2 as in CLIP."""
    return nn.Parameter(torch.randn(width, embed_dim) * width**-0.5)


def _unit(x: Tensor) -> Tensor:
    """Rows of length one; in bfloat16 they would be so to two digits only."""
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=1)
