"""TSM and its baseline TSN: for data sets of your own, Kinetics and Something-Something."""

from __future__ import annotations

from dataclasses import replace

from matinee.data.clips import ClipSpec
from matinee.models.config import Frames, ModelConfig
from matinee.tasks.config import ClassificationConfig
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig


def tsm(data: str, out: str) -> TrainConfig:
    """Temporal shift on a ResNet-50, 8 segments, for clips of your own.

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
    """The same without the shift: each frame alone, logits averaged.

    Source: TSN, arXiv 1608.00859.
    """
    config = tsm(data, out)
    return replace(config, model=replace(config.model, temporal=Frames()))


def tsm_motion(data: str, out: str) -> TrainConfig:
    """TSM on grey frame differences, for small sets where looks mislead.

    They have few people or places. A small network at 80², meant for ImageNet weights
    (--model.pretrained FILE). Chosen on the training people of the Weizmann actions; see examples/.
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


SOMETHING_V2_SWAPS = (
    "Pulling something from left to right=Pulling something from right to left",
    "Pushing something from left to right=Pushing something from right to left",
    "Turning the camera left while filming something"
    "=Turning the camera right while filming something",
)
"""Classes of Something-Something V2 that mirroring exchanges (86 and 87, 93 and 94, 166 and 167),
for `ClipSpec.flip_swap`."""


def tsm_kinetics(data: str, out: str) -> TrainConfig:
    """TSM ResNet-50 on Kinetics: 8 frames, stride 8.

    Published: from ImageNet weights, SGD with momentum 0.9, learning rate 0.01 at batch 64, divided
    by 10 after 40 and 80 of 100 epochs, weight decay 1e-4, dropout 0.5; multi-scale crops of 224²,
    mirrored; the classifier at five times the rate, gradient norm 20; 74.1 % top-1 over 10×3 views.

    Here the batch passes in four parts, so batch normalisation sees 16 clips at a time; the
    classifier's bias learns as fast as its weights (published: twice as fast); and views are
    evaluated at 224² (published: 256²). The rate follows the batch: for large ones (12,288 clips in
    arXiv 1910.00932) add --optim.warmup-epochs 5, as arXiv 1706.02677 does.

    Source: TSM, arXiv 1811.08383, §5.1, and its published code; Non-local, arXiv 1711.07971, §4.
    """
    return TrainConfig(
        data=DataConfig(path=data),
        run=RunConfig(out=out, views="10x3"),
        model=ModelConfig(backbone="resnet50.tv_in1k", pretrained="timm"),
        clip=ClipSpec(
            frames=8, sampling="dense", stride=8, size=224, crop="multi-scale", flip="horizontal"
        ),
        optim=OptimConfig(
            name="sgd", lr=0.01, base_batch=64, batch_size=64, accumulate=4, epochs=100,
            warmup_epochs=0, schedule="step", drops=(0.4, 0.8), weight_decay=1e-4, head_lr=5,
            clip_norm=20,
        ),
    )  # fmt: skip


def tsn_kinetics(data: str, out: str) -> TrainConfig:
    """TSN ResNet-50 on Kinetics: 8 segments, each frame alone.

    Published: as `tsm_kinetics`, but frames from the whole video, batch 128 at learning rate 0.02
    (as much a clip), divided by 10 after 20 and 40 of 50 epochs; 68.8 % top-1 with one view. That
    network was trained on 5 segments and tested on 8; here a network is tested on as many as it
    was trained on: 8, as TSM beside it.

    Source: TSM, arXiv 1811.08383, and its published code; TSN, arXiv 1608.00859.
    """
    config = tsm_kinetics(data, out)
    return replace(
        config,
        run=replace(config.run, views="1x1"),
        model=replace(config.model, temporal=Frames()),
        clip=replace(config.clip, sampling="uniform"),
        optim=replace(config.optim, batch_size=128, accumulate=8, epochs=50),
    )


def tsm_something(data: str, out: str) -> TrainConfig:
    """TSM ResNet-50 on Something-Something: 8 segments.

    Published: as `tsm_kinetics`, but frames from the whole video, 50 epochs with drops after 20
    and 40, and nothing is mirrored, since labels tell left from right. Evaluated in the accurate
    setting: 2 clips × 3 crops; the efficient one is --views 1x1.

    To mirror nevertheless: flip "horizontal" with flip_swap `SOMETHING_V2_SWAPS` for V2.

    Source: TSM, arXiv 1811.08383, §5.1, and its published code.
    """
    config = tsm_kinetics(data, out)
    return replace(
        config,
        run=replace(config.run, views="2x3"),
        clip=replace(config.clip, sampling="uniform", flip="none"),
        optim=replace(config.optim, epochs=50),
    )
