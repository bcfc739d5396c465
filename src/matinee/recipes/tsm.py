"""TSM and its baseline TSN for data sets of your own."""

from __future__ import annotations

from dataclasses import replace

from matinee.data.clips import ClipSpec
from matinee.models.config import Frames, ModelConfig
from matinee.tasks.config import ClassificationConfig
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
    return replace(config, model=replace(config.model, temporal=Frames()))


def tsm_motion(data: str, out: str) -> TrainConfig:
    """TSM on grey frame differences: small sets with few people or places, where looks mislead.

    A small network at 80², meant for ImageNet weights (--model.pretrained FILE). Chosen on the
    training people of the Weizmann actions; see examples/.
    """
    return TrainConfig(
        data=DataConfig(path=data, repeats=2),
        run=RunConfig(out=out, eval_every=4),
        model=ModelConfig(backbone="tf_efficientnet_lite0", dropout=0.2),
        task=ClassificationConfig(label_smoothing=0.1),
        clip=ClipSpec(
            frames=8,
            sampling="dense",
            stride=4,
            modality="difference",
            size=80,
            scale=(0.4, 1.0),
            ratio=(0.7, 1.43),
            center_scale=0.8,
            flip="horizontal",
            brightness=0.4,
            contrast=0.4,
            grayscale=1.0,
            erasing=0.3,
        ),
        optim=OptimConfig(
            name="adamw", lr=1e-3, weight_decay=0.01, batch_size=8, epochs=8, warmup_epochs=0.8,
            clip_norm=None,
        ),
    )  # fmt: skip
