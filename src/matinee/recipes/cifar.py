"""Image networks on CIFAR-10 and CIFAR-100, the data and networks of arXiv 2312.10024.

The classes come from the data, 10 or 100. For pictures of 224²: --clip.size 224 --clip.crop
random-resized, with --model.no-small-input (CNNs) or --model.patch-size 16 (ViT).
"""

from __future__ import annotations

from dataclasses import replace

from matinee.data.clips import ClipSpec
from matinee.models.config import Frames, ModelConfig
from matinee.tasks.config import ClassificationConfig
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig


def resnet50_cifar(data: str, out: str) -> TrainConfig:
    """ResNet-50 from scratch on images of 32².

    Batch 128, SGD with momentum 0.9, learning rate 0.1, pictures moved by up to 4 pixels and
    mirrored, a 3×3 stem without pooling, as published for small ResNets; weight decay 5e-4 and 200
    epochs as for wide ones, whose capacity is nearer. Their steps are a cosine here, with 5 epochs
    of warm-up.

    Source: ResNet, arXiv 1512.03385, §4.2; Wide ResNet, arXiv 1605.07146, §3.
    """
    return TrainConfig(
        data=DataConfig(path=data),
        run=RunConfig(out=out),
        model=ModelConfig(
            backbone="resnet50", temporal=Frames(), dropout=0.0, small_input=True
        ),
        clip=ClipSpec(frames=1, size=32, crop="pad", flip="horizontal"),
        optim=OptimConfig(
            name="sgd", lr=0.1, base_batch=128, batch_size=128, epochs=200, warmup_epochs=5,
            schedule="cosine", weight_decay=5e-4, clip_norm=None,
        ),
    )  # fmt: skip


def efficientnet_cifar(data: str, out: str) -> TrainConfig:
    """EfficientNet-B0 from scratch on images of 32².

    As `resnet50_cifar`, with EfficientNet's own dropout and drop path of 0.2, and a stem of
    stride 1. Published for ImageNet were RMSProp and 224²; its CIFAR results are of transfer.

    Source: EfficientNet, arXiv 1905.11946, §5.2.
    """
    config = resnet50_cifar(data, out)
    model = replace(config.model, backbone="efficientnet_b0", dropout=0.2, drop_path=0.2)
    return replace(config, model=model)


def vit_cifar(data: str, out: str) -> TrainConfig:
    """ViT-B from scratch on images of 32², with patches of 4².

    DeiT's settings for training without large data: AdamW, learning rate 5e-4 at batch 512 with 5
    epochs of warm-up and a cosine to 1e-5, weight decay 0.05, 300 epochs, drop path 0.1, label
    smoothing 0.1, Mixup 0.8 or CutMix 1.0 at even odds, RandAugment of 2 operations with magnitude
    9, a box of a quarter of the images filled with noise. Repeated augmentation is left out; crops
    are those of the other networks here.

    Source: DeiT, arXiv 2012.12877, Table 9; ViT, arXiv 2010.11929.
    """
    config = resnet50_cifar(data, out)
    return replace(
        config,
        model=ModelConfig(
            backbone="vit_base_patch16_224", temporal=Frames(), dropout=0.0, drop_path=0.1,
            patch_size=4,
        ),
        task=ClassificationConfig(label_smoothing=0.1, mixup=0.8, cutmix=1.0),
        clip=replace(
            config.clip, rand_augment=2, rand_magnitude=9, erasing=0.25, erasing_fill="noise",
            erasing_area=(0.02, 1 / 3), erasing_aspect=(0.3, 1 / 0.3),
        ),
        optim=OptimConfig(
            name="adamw", lr=5e-4, base_batch=512, batch_size=128, epochs=300, warmup_epochs=5,
            schedule="cosine", min_lr=1e-5, weight_decay=0.05, clip_norm=None,
        ),
    )  # fmt: skip
