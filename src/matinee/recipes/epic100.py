"""Fine-tuning on EPIC-Kitchens-100: retrieval (MIR) and classification (CLS), as AVION does."""

from __future__ import annotations

from dataclasses import replace

from matinee.recipes.clip import clip_ego4d
from matinee.tasks.config import ClassificationConfig, ContrastiveConfig
from matinee.training.config import OptimConfig, TrainConfig


def mir_epic100(data: str, out: str) -> TrainConfig:
    """EK-100 multi-instance retrieval: ViT-B/16, 16 frames, max-margin.

    Starts from a run of `clip_ego4d` (or AVION's weights): --model.pretrained RUN/last.pt; the
    temporal embedding of 4 frames is interpolated to 16.

    Published: 64 clips on each of 8 GPUs, AdamW, learning rate 3e-5 with one epoch of warm-up and a
    cosine to 1e-5, weight decay 0.01, 100 epochs, margin 0.2, validated every fifth epoch.

    Here the 512 clips pass in 8 parts with cached features: the same gradient. A clip's caption is
    always its own; the published code draws one among those of relevancy above 0.1.

    Source: AVION, arXiv 2309.16669, and its published code; the loss of LaViLa, arXiv 2212.04501.
    """
    config = clip_ego4d(data, out)
    assert isinstance(config.task, ContrastiveConfig)
    return replace(
        config,
        run=replace(config.run, eval_every=5),
        task=replace(config.task, loss="max-margin", margin=0.2),
        clip=replace(config.clip, frames=16),
        optim=OptimConfig(
            name="adamw", lr=3e-5, batch_size=512, accumulate=8, epochs=100, warmup_epochs=1,
            schedule="cosine", min_lr=1e-5, betas=(0.9, 0.999), weight_decay=0.01, clip_norm=None,
        ),
    )  # fmt: skip


def cls_epic100(data: str, out: str) -> TrainConfig:
    """EK-100 actions: ViT-B/16, 16 frames, pairs of verb and noun.

    Starts from a run of `clip_ego4d` (or AVION's weights): --model.pretrained RUN/last.pt. Needs
    the columns `verb` and `noun`; the pairs that occur in training and validation are the classes,
    3,806 in EK-100.

    Published: 64 clips on each of 8 GPUs, SGD with momentum 0.9, learning rate 3e-3 at batch 128
    with two epochs of warm-up and a cosine to 1e-5, weight decay 4e-5, 100 epochs; dropout 0.5,
    drop path 0.1, label smoothing 0.1, Mixup 0.8 or CutMix 1.0 at even odds; one view.

    Here the 512 clips pass in 8 parts: the same gradient, each part with its own mixture.

    Source: AVION, arXiv 2309.16669, and its published code.
    """
    config = clip_ego4d(data, out)
    return replace(
        config,
        run=replace(config.run, eval_every=5),
        model=replace(config.model, dropout=0.5, drop_path=0.1),
        task=ClassificationConfig(
            labels="verb+noun", label_smoothing=0.1, mixup=0.8, cutmix=1.0
        ),
        clip=replace(config.clip, frames=16),
        optim=OptimConfig(
            name="sgd", lr=3e-3, base_batch=128, batch_size=512, accumulate=8, epochs=100,
            warmup_epochs=2, schedule="cosine", min_lr=1e-5, momentum=0.9, weight_decay=4e-5,
            clip_norm=None,
        ),
    )  # fmt: skip
