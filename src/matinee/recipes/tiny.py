"""Any recipe, so small that it runs in seconds on a CPU: to try data, settings and machine."""

from __future__ import annotations

from dataclasses import replace

from matinee.models.config import Inflate, ModelConfig
from matinee.tasks.config import ClipTextConfig, ContrastiveConfig, MaskedConfig, TaskConfig
from matinee.training.config import TrainConfig


def tiny(config: TrainConfig) -> TrainConfig:
    """The recipe with a small network of the same kind, 32², four frames and one epoch of batches
    of 4, from scratch. What it learns means nothing.
    """
    return replace(
        config,
        data=replace(config.data, repeats=1, workers=1, mode="threads"),
        run=replace(config.run, log_every=1, eval_every=1, views="1x1"),
        model=_tiny_model(config.model),
        task=_tiny_task(config.task),
        clip=replace(config.clip, frames=min(config.clip.frames, 4), size=32),
        optim=replace(
            config.optim, batch_size=4, accumulate=min(config.optim.accumulate, 2), epochs=1,
            warmup_epochs=0,
        ),
    )  # fmt: skip


def _tiny_model(model: ModelConfig) -> ModelConfig:
    model = replace(model, pretrained="none")
    if model.backbone.startswith("vit_"):
        return replace(model, backbone="vit_tiny_patch16_224", patch_size=8)
    if model.small_input:  # needs a plain stem
        efficient = "efficientnet" in model.backbone
        return replace(model, backbone="test_efficientnet" if efficient else "resnet18")
    bottlenecks = isinstance(model.temporal, Inflate)  # whose 1×1 kernels become 3×1×1
    return replace(model, backbone="resnet14t" if bottlenecks else "resnet10t")


def _tiny_task(task: TaskConfig) -> TaskConfig:
    match task:
        case ContrastiveConfig(text=ClipTextConfig() as text):
            small = replace(text, width=64, heads=2, layers=2)
            return replace(task, text=small, embed_dim=32)
        case MaskedConfig():
            return replace(task, decoder_depth=1, decoder_width=64, decoder_heads=2)
    return task
