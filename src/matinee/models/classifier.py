"""A timm image network as a video classifier: frames in one batch, segment consensus at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from matinee.errors import ConfigError, first_line
from matinee.extras import require
from matinee.models.shift import add_temporal_shift
from matinee.models.weights import load_weights


@dataclass(frozen=True)
class ModelConfig:
    """Which network."""

    backbone: str = "resnet50"
    """Any timm CNN with residual blocks (resnet50, resnext50_32x4d, efficientnet_b0, …)."""
    shift: Literal["residual", "none"] = "residual"
    """residual: TSM; none: the same network frame by frame (TSN)."""
    shift_div: int = 8
    """1/shift_div of the channels goes each way."""
    dropout: float = 0.5
    """Before the classifier; TSM's default for fine-tuning."""
    pretrained: str = "none"
    """none, a file of image weights (.safetensors or .pth), or `timm`: fetch them (network)."""

    def __post_init__(self) -> None:
        if self.shift_div < 2:
            raise ConfigError(f"--model.shift-div {self.shift_div}: at least 2")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"--model.dropout {self.dropout}: in [0, 1)")


class VideoClassifier(nn.Module):
    """Image network on every frame, logits averaged over frames (TSN's segment consensus).

    Source: TSN, arXiv 1608.00859, §3.1.
    """

    def __init__(self, backbone: nn.Module, frames: int) -> None:
        super().__init__()
        self.backbone, self.frames = backbone, frames

    def forward(self, video_BCTHW: Tensor) -> Tensor:
        """Float [B, 3, T, H, W] → logits [B, K]."""
        clips, _, frames, _, _ = video_BCTHW.shape
        if frames != self.frames:
            raise ValueError(f"a clip of {frames} frames for a network made for {self.frames}")
        images = video_BCTHW.transpose(1, 2).flatten(0, 1)  # [B·T, 3, H, W]
        logits: Tensor = self.backbone(images.contiguous(memory_format=torch.channels_last))
        return logits.view(clips, frames, -1).mean(dim=1)


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of RGB (0–1) that the network expects."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def build_classifier(
    config: ModelConfig, *, num_classes: int, frames: int
) -> tuple[VideoClassifier, Normalisation, str]:
    """The network, its input normalisation, and a sentence about its weights.

    Raises:
        ConfigError: an unknown backbone, or weights that cannot be had or do not fit.
        MissingExtra: timm is not installed.
    """
    timm = require("timm", "train")
    if not timm.is_model(config.backbone):
        near = timm.list_models(f"*{config.backbone[:6]}*")[:5]
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ConfigError(f"timm has no model {config.backbone!r}{hint}")
    fetch = config.pretrained == "timm"
    try:
        backbone = timm.create_model(
            config.backbone, pretrained=fetch, num_classes=num_classes, drop_rate=config.dropout
        )
    except Exception as error:
        if not fetch:
            raise
        raise ConfigError(
            f"the weights of {config.backbone} could not be fetched "
            f"({first_line(error)[:120]}): give a file with --model.pretrained FILE, "
            "or train from scratch with --model.pretrained none"
        ) from None
    note = "weights: from scratch"
    if fetch:
        note = f"weights: timm's for {config.backbone}"
    elif config.pretrained != "none":
        note = load_weights(backbone, config.pretrained)
    if config.shift == "residual":
        add_temporal_shift(backbone, frames, config.shift_div)
    cfg = backbone.pretrained_cfg
    return VideoClassifier(backbone, frames), Normalisation(cfg["mean"], cfg["std"]), note
