"""TSM and its baseline TSN for data sets of your own."""

from __future__ import annotations

from dataclasses import replace

from matinee.data.clips import ClipSpec
from matinee.models.classifier import ModelConfig
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig


def tsm(data: str, out: str) -> TrainConfig:
    """Temporal shift on a ResNet-50, 8 segments, multi-scale crops, SGD.

    Source: TSM, arXiv 1811.08383, §5.1 (lr 0.01 at batch 64 scaled down to batch 16, weight decay
    1e-4, dropout 0.5, gradient norm 20).
    """
    return TrainConfig(
        data=DataConfig(path=data),
        run=RunConfig(out=out),
        model=ModelConfig(backbone="resnet50"),
        clip=ClipSpec(frames=8, sampling="uniform", size=224, crop="multi-scale"),
        optim=OptimConfig(name="sgd", lr=0.0025, batch_size=16, epochs=50),
    )


def tsn(data: str, out: str) -> TrainConfig:
    """The same without the shift: each frame alone, logits averaged. TSN, arXiv 1608.00859."""
    config = tsm(data, out)
    return replace(config, model=replace(config.model, shift="none"))
