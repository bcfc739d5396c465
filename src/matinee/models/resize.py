"""Smaller or shorter clips for the same network: progressive resizing.

# Note [Resizing]
A network resized to T' frames of another size is the one that would have been built for them, with
the same parameters. Convolutions take any size; whatever mixes frames is told their number. A ViT's
learned positions are interpolated where they are used, so the parameters keep their shapes and get
the gradients of all sizes.

Source: multigrid training, arXiv 1912.00998; position embeddings, arXiv 2010.11929, §3.2.
"""

from __future__ import annotations

from torch import nn

from matinee.errors import ConfigError
from matinee.models.dual import DualEncoder
from matinee.models.frames import FrameModel
from matinee.models.inflate import InflatedConv
from matinee.models.joint import JointModel
from matinee.models.masked import MaskedAutoencoder
from matinee.models.shift import TemporalModule, TemporalPool


def resize_clips(model: nn.Module, *, frames: int, size: int) -> None:
    """Take clips of `frames` frames of `size` pixels from now on. See Note [Resizing].

    Raises:
        ConfigError: the network cannot; it is then as it was.
    """
    match model:
        case DualEncoder():
            resize_clips(model.video, frames=frames, size=size)
        case JointModel() | MaskedAutoencoder():
            model.resize(frames, size)
        case FrameModel():
            _resize_frames(model, frames, size)
        case _:
            raise ConfigError(
                f"a {type(model).__name__} cannot take clips of another size or length"
            )


def _resize_frames(model: FrameModel, frames: int, size: int) -> None:
    if model.fixed_size not in (None, size):
        raise ConfigError(
            f"this {type(model.backbone).__name__} is made for pictures of {model.fixed_size} "
            f"pixels and cannot take {size}: choose a network without a fixed input size (a CNN, "
            "or a ViT with joint attention), or leave the size as it is"
        )
    if frames < 1:
        raise ConfigError(f"clips of {frames} frames: at least 1")
    if frames < 2 and any(isinstance(m, TemporalPool) for m in model.modules()):
        raise ConfigError(f"temporal pooling over {frames} frame: give at least 2 frames")
    model.frames = frames
    for module in model.backbone.modules():  # a ResNet registers its modules as it runs them
        if isinstance(module, TemporalModule | InflatedConv):
            module.frames = frames
        if isinstance(module, TemporalPool):
            frames = module.frames_out
