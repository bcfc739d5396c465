"""VideoMAE on Kinetics: masked pretraining, then fine-tuning."""

from __future__ import annotations

from matinee.data.clips import ClipSpec
from matinee.models.config import Joint, ModelConfig
from matinee.tasks.config import ClassificationConfig, MaskedConfig
from matinee.training.config import DataConfig, OptimConfig, RunConfig, TrainConfig

BACKBONE = "vit_base_patch16_224.mae"  # the tag gives ImageNet's mean and deviation, as published


def videomae_kinetics(data: str, out: str) -> TrainConfig:
    """VideoMAE ViT-B/16 on Kinetics: 16 frames, stride 4, 90 % hidden.

    Published: AdamW with betas 0.9 and 0.95, learning rate 1.5e-4 at batch 256 with 40 epochs of
    warm-up and a cosine to 1e-5, weight decay 0.05, 800 epochs, multi-scale crops of 224²,
    mirrored; tubes of 2 frames, a decoder of 4 blocks of width 384. VideoMAE used batches of 2,048
    on 64 GPUs; AVION 64 clips on each of 4 GPUs, with AdamW or with Lion, all else equal
    (--optim.name lion).

    Here AVION's 256 clips pass in 4 parts: the same gradient.

    Source: VideoMAE, arXiv 2203.12602, appendix, and its published code; AVION, arXiv 2309.16669,
    and its published code.
    """
    return TrainConfig(
        data=DataConfig(path=data),
        run=RunConfig(out=out, eval_every=20),
        model=ModelConfig(
            backbone=BACKBONE, temporal=Joint(tubelet=2, positions="sine"), dropout=0.0
        ),
        task=MaskedConfig(mask_ratio=0.9, decoder_depth=4, decoder_width=384, decoder_heads=6),
        clip=ClipSpec(
            frames=16, sampling="dense", stride=4, size=224, crop="multi-scale", flip="horizontal"
        ),
        optim=OptimConfig(
            name="adamw", lr=1.5e-4, base_batch=256, batch_size=256, accumulate=4, epochs=800,
            warmup_epochs=40, schedule="cosine", min_lr=1e-5, betas=(0.9, 0.95), weight_decay=0.05,
            clip_norm=None,
        ),
    )  # fmt: skip


def videomae_finetune_kinetics(data: str, out: str) -> TrainConfig:
    """ViT-B/16 fine-tuned on Kinetics after VideoMAE: 16 frames, stride 4.

    Starts from a run of `videomae_kinetics` (or published weights): --model.pretrained RUN/last.pt.

    Published by AVION: 32 clips on each of 8 GPUs, AdamW with betas 0.9 and 0.999, learning rate
    1.5e-3 at batch 256 with 5 epochs of warm-up and a cosine to 1e-6, each block at 0.75 times the
    rate of the next, weight decay 0.05, 100 epochs; drop path 0.1, label smoothing 0.1, Mixup 0.8
    or CutMix 1.0 at even odds, RandAugment of 4 operations with magnitude 7, a box of a quarter of
    the clips filled with noise, crops of 8 % of the picture and more, mirrored; 80.1 % top-1 over
    5×3 views. VideoMAE took learning rate 1e-3 at batch 256 and batches of 512.

    Here the 256 clips pass in 8 parts, and RandAugment sees the crop and resamples bilinearly
    (VideoMAE: whole frames, bicubic).

    Source: AVION, arXiv 2309.16669, and its published code; VideoMAE, arXiv 2203.12602, appendix.
    """
    return TrainConfig(
        data=DataConfig(path=data),
        run=RunConfig(out=out, views="5x3"),
        model=ModelConfig(
            backbone=BACKBONE,
            temporal=Joint(tubelet=2, positions="sine"),
            dropout=0.0,
            drop_path=0.1,
        ),
        task=ClassificationConfig(label_smoothing=0.1, mixup=0.8, cutmix=1.0),
        clip=ClipSpec(
            frames=16, sampling="dense", stride=4, size=224, scale=(0.08, 1.0), center_scale=1.0,
            flip="horizontal", rand_augment=4, rand_magnitude=7, erasing=0.25,
            erasing_fill="noise", erasing_area=(0.02, 1 / 3), erasing_aspect=(0.3, 1 / 0.3),
        ),
        optim=OptimConfig(
            name="adamw", lr=1.5e-3, base_batch=256, batch_size=256, accumulate=8, epochs=100,
            warmup_epochs=5, schedule="cosine", min_lr=1e-6, betas=(0.9, 0.999), weight_decay=0.05,
            layer_decay=0.75, clip_norm=None,
        ),
    )  # fmt: skip
