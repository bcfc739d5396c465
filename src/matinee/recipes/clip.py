"""Contrastive pretraining of clips and narrations on Ego4D: AVION."""

from __future__ import annotations

from dataclasses import replace

from matinee.data.clips import ClipSpec
from matinee.models.config import Joint, ModelConfig
from matinee.tasks.config import ClipTextConfig, ContrastiveConfig
from matinee.training.config import DataConfig, OptimConfig, RunConfig, SpeedConfig, TrainConfig


def clip_ego4d(data: str, out: str) -> TrainConfig:
    """CLIP ViT-B/16 on narrated clips of Ego4D: 4 frames, batch 2,048.

    Meant for OpenAI's weights: --model.pretrained FILE (CLIP's ViT-B/16, which brings both towers).

    Published: 256 clips on each of 8 GPUs, AdamW with betas 0.9 and 0.999, learning rate 3e-5 all
    through (warm-up and cosine are switched off), weight decay 0.01, 5 epochs, frozen temperature
    0.07, projection to 256, crops of half the picture and more, not mirrored, every block
    recomputed in the backward pass.

    Here the same 2,048 clips pass in 8 parts through one GPU; features are cached, so the gradient
    is that of one batch. Each frame has a class token of its own (published: one a clip).

    Source: AVION, arXiv 2309.16669, and its published code (MODEL_ZOO).
    """
    return TrainConfig(
        data=DataConfig(path=data),
        run=RunConfig(out=out),
        model=ModelConfig(
            backbone="vit_base_patch16_clip_quickgelu_224",
            temporal=Joint(),
            dropout=0.0,
        ),
        task=ContrastiveConfig(
            text=ClipTextConfig(width=512, heads=8, layers=12, quick_gelu=True),
            embed_dim=256,
            temperature=0.07,
            learn_temperature=False,
        ),
        clip=ClipSpec(frames=4, size=224, scale=(0.5, 1.0), center_scale=1.0),
        optim=OptimConfig(
            name="adamw", lr=3e-5, batch_size=2048, accumulate=8, epochs=5, warmup_epochs=0,
            schedule="constant", betas=(0.9, 0.999), weight_decay=0.01, clip_norm=None,
        ),
        speed=SpeedConfig(recompute=1),
    )  # fmt: skip


def clip_ego4d_large(data: str, out: str) -> TrainConfig:
    """CLIP ViT-L/14 on narrated clips of Ego4D: 4 frames, batch 896.

    As `clip_ego4d`, with 112 clips on each of 8 GPUs and the larger text tower. Published weights
    saw the narrations rephrased and extended by LaViLa's language model: put them into the column
    `text`.

    Source: AVION, arXiv 2309.16669, and its published code (MODEL_ZOO).
    """
    config = clip_ego4d(data, out)
    assert isinstance(config.task, ContrastiveConfig)
    text = ClipTextConfig(width=768, heads=12, layers=12, quick_gelu=True)
    return replace(
        config,
        model=replace(config.model, backbone="vit_large_patch14_clip_quickgelu_224"),
        task=replace(config.task, text=text),
        optim=replace(config.optim, batch_size=896),
    )
