"""From a `ModelConfig` to a video network."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from torch import nn

from matinee.errors import ConfigError, first_line
from matinee.extras import require
from matinee.models.base import Normalisation, VideoModel
from matinee.models.config import Frames, Inflate, Joint, ModelConfig, Shift
from matinee.models.frames import FrameModel
from matinee.models.inflate import InflatedModel, inflate
from matinee.models.joint import JointModel
from matinee.models.masked import plain_encoder
from matinee.models.non_local import add_non_local
from matinee.models.shift import add_temporal_pooling, add_temporal_shift, check_shift
from matinee.models.weights import load_into


def build_video_model(
    config: ModelConfig, *, num_classes: int, frames: int, size: int
) -> tuple[VideoModel, Normalisation, str]:
    """The network, its input normalisation, and a sentence about it and its weights.

    Args:
        num_classes: outputs of the classifier; 0 for features only.
        frames, size: of the clips: T, and height and width in pixels.

    Raises:
        ConfigError: an unknown backbone, one that cannot see time in the way asked, or weights
            that cannot be had or do not fit.
        MissingExtra: timm is not installed.
    """
    backbone, note = image_network(config, num_classes=num_classes, size=size)
    normalisation = _normalisation(backbone)
    model, how = _video_network(config, backbone, frames, size)
    if config.pretrained not in ("none", "timm"):
        note = load_into(model, config.pretrained).sentence(config.pretrained)
    return model, normalisation, f"{config.backbone}, {how}; {note}"


def _video_network(
    config: ModelConfig, backbone: Any, frames: int, size: int
) -> tuple[VideoModel, str]:
    """The image network with an eye for time, and words for it."""
    fixed = size if _is_fixed(config.backbone) else None
    match config.temporal:
        case Frames():
            how = "each frame alone"
        case Shift() as shift:
            how = f"temporal shift ({shift.placement}{', causal' if shift.causal else ''})"
            if shift.pool:
                add_temporal_pooling(backbone, frames)
            add_temporal_shift(
                backbone, frames, shift.div, placement=shift.placement, every=shift.every,
                causal=shift.causal,
            )  # fmt: skip
            check_shift(backbone, frames, size)
            if shift.non_local:
                add_non_local(backbone, frames)
        case Inflate() as spread:
            how = f"inflated {spread.kernel}"
            inflate(backbone, frames, kernel=spread.kernel, every=spread.every, init=spread.init)
            return InflatedModel(
                backbone, frames, config.dropout, partial_bn=config.partial_bn, fixed_size=fixed
            ), how
        case Joint() as joint:
            model = JointModel(
                backbone, frames=frames, tubelet=joint.tubelet, positions=joint.positions,
                class_token=joint.class_token, patch_dropout=joint.patch_dropout,
            )  # fmt: skip
            return model, f"joint space-time attention, tubelets of {joint.tubelet}"
    return FrameModel(backbone, frames, partial_bn=config.partial_bn, fixed_size=fixed), how


def build_encoder(config: ModelConfig, *, size: int) -> tuple[Any, Normalisation]:
    """A ViT as VideoMAE's encoder: no class token, a norm at the end, no classifier.

    Raises:
        ConfigError: the backbone is no ViT, or `temporal` is not joint.
    """
    if not isinstance(config.temporal, Joint):
        raise ConfigError("masked pretraining needs a ViT with joint attention (recipe videomae_*)")
    _known(config.backbone)
    network = plain_encoder(
        config.backbone, size=size, drop_path=config.drop_path, patch=config.patch_size
    )
    _check_patches(network, size)
    return network, _normalisation(network)


def image_network(config: ModelConfig, *, num_classes: int, size: int) -> tuple[Any, str]:
    """A timm network for pictures of `size` pixels, and a sentence about its weights, which are
    new or fetched by timm.

    Raises:
        ConfigError: timm has no such network, or weights cannot be had or do not fit.
    """
    timm = require("timm", "train")
    _known(config.backbone)
    fetch = config.pretrained == "timm"
    # Over frames that are averaged, dropout of each would cancel out: I3D's is of the clip.
    dropout = 0.0 if isinstance(config.temporal, Inflate) else config.dropout
    settings: dict[str, Any] = {"num_classes": num_classes, "drop_rate": dropout}
    if config.drop_path:
        settings["drop_path_rate"] = config.drop_path
    if isinstance(config.temporal, Joint):
        settings |= {"img_size": size, "dynamic_img_size": False}
    elif _is_fixed(config.backbone):
        settings["img_size"] = size
    if config.patch_size is not None:
        settings["patch_size"] = config.patch_size
    if isinstance(config.temporal, Joint) and config.temporal.positions == "sine":
        settings |= {"class_token": False, "global_pool": "avg", "fc_norm": True}
    try:
        network = timm.create_model(config.backbone, pretrained=fetch, **settings)
    except Exception as error:
        if not fetch:
            hint = "; joint attention needs a ViT" if isinstance(config.temporal, Joint) else ""
            raise ConfigError(
                f"timm cannot make {config.backbone} with {settings}: {first_line(error)}{hint}"
            ) from None
        raise ConfigError(
            f"the weights of {config.backbone} could not be fetched "
            f"({first_line(error)[:120]}): give a file with --model.pretrained FILE, "
            "or train from scratch with --model.pretrained none"
        ) from None
    _check_patches(network, size)
    if config.small_input:
        _for_small_pictures(network, config.backbone)
    return network, f"timm's weights for {config.backbone}" if fetch else "weights from scratch"


def _for_small_pictures(network: Any, name: str) -> None:
    """A ResNet's or EfficientNet's first convolution with stride 1, and no pooling after it.

    Source: for CIFAR, arXiv 1512.03385, §4.2.
    """
    stem = "conv1" if hasattr(network, "conv1") else "conv_stem"
    conv = getattr(network, stem, None)
    if not isinstance(conv, nn.Conv2d):
        raise ConfigError(
            f"--model.small-input is for ResNets and EfficientNets; {name} has no such first "
            "convolution (a ViT takes --model.patch-size)"
        )
    small = nn.Conv2d(3, conv.out_channels, 3, stride=1, padding=1, bias=conv.bias is not None)
    setattr(network, stem, small)
    if hasattr(network, "maxpool"):
        network.maxpool = nn.Identity()


def _check_patches(network: Any, size: int) -> None:
    """Refuse pictures that a ViT's patches do not fill."""
    patch = getattr(getattr(network, "patch_embed", None), "patch_size", None)
    if isinstance(patch, tuple) and any(size % side for side in patch):
        raise ConfigError(
            f"--clip.size {size} is no multiple of the {patch[0]} pixels of a patch: choose one "
            "that is, or another --model.patch-size"
        )


def _is_fixed(name: str) -> bool:
    """Whether a network is made for pictures of one size."""
    return bool(require("timm", "train").get_pretrained_cfg(name).fixed_input_size)


def _known(name: str) -> None:
    timm = require("timm", "train")
    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), n=5)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ConfigError(f"timm has no model {name!r}{hint}")


def _normalisation(network: Any) -> Normalisation:
    return Normalisation(network.pretrained_cfg["mean"], network.pretrained_cfg["std"])
