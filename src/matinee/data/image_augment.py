"""Crops, mirroring and colours of images: planned one by one, done for a batch on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from matinee.data.augment.apply import augment
from matinee.data.augment.erase import erase
from matinee.data.augment.tones import from_parts
from matinee.data.clips import (
    ClipPlan,
    ClipSpec,
    View,
    plan_evaluation_clip,
    plan_training_clip,
)
from matinee.data.device import IMAGENET_MEAN, IMAGENET_STD, channels, color_change, normalise
from matinee.data.transfer import send
from matinee.errors import ConfigError
from matinee.media.decode import Box
from matinee.pack.reading.reader import SampleInfo

PAD = 4
"""Pixels of border on each side under crop "pad" (ResNet, arXiv 1512.03385, §4.2)."""


def check_image_spec(
    spec: ClipSpec, size: tuple[int, int], views: tuple[int, int] | None = None
) -> None:
    """Refuse what images of `size` (height, width) cannot be.

    Raises:
        ConfigError: more than one frame or temporal view, differences, padding of oblong pictures.
    """
    if spec.frames != 1:
        raise ConfigError(f"--clip.frames {spec.frames}: an image has 1; set --clip.frames 1")
    if spec.modality != "rgb":
        raise ConfigError(f"--clip.modality {spec.modality}: an image has no motion; use rgb")
    if views is not None and views[0] != 1:
        raise ConfigError(f"views {views[0]}x{views[1]}: an image has one moment; use 1x{views[1]}")
    if spec.crop == "pad" and size[0] != size[1]:
        raise ConfigError(
            f"--clip.crop pad needs square images, these are {size[1]}x{size[0]}: make the set "
            "with --size, or use --clip.crop random-resized"
        )


def plan_training_image(info: SampleInfo, spec: ClipSpec, rng: np.random.Generator) -> ClipPlan:
    """A random look at an image; a box over the border has corners outside the picture."""
    if spec.crop != "pad":
        return plan_training_clip(info, spec, rng)
    plan = plan_training_clip(info, _unpadded(spec), rng)
    x, y = rng.integers(-PAD, PAD + 1, 2).tolist()
    return replace(plan, box=Box(x, y, info.width, info.height))


def plan_evaluation_image(info: SampleInfo, spec: ClipSpec, view: View) -> ClipPlan:
    """The image's view: as of a clip, but the whole picture where training pads."""
    if spec.crop != "pad":
        return plan_evaluation_clip(info, spec, view)
    plan = plan_evaluation_clip(info, _unpadded(spec), view)
    return replace(plan, box=Box(0, 0, info.width, info.height))


@lru_cache(maxsize=8)
def _unpadded(spec: ClipSpec) -> ClipSpec:
    return replace(spec, crop="center")


def to_images(
    pixels_BHWC: Tensor,
    plans: Sequence[ClipPlan],
    *,
    size: int,
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    std: tuple[float, float, float] = IMAGENET_STD,
) -> Tensor:
    """Change colours, crop, resize, mirror, augment, normalise and blank a batch as planned.

    Args:
        pixels_BHWC: uint8 RGB on the device.
        size: height and width of the result.

    Returns:
        float32 [B, 3, 1, size, size]: `(rgb - mean) / std` with RGB clamped to 0–1, resampled
        bilinearly, with antialiasing where it shrinks. Pixels that need no resampling keep their
        values; those outside the picture are the mean colour.
    """
    device = pixels_BHWC.device
    # Integers of all plans in one transfer: x, y, width, height, mirrored.
    boxes = [(p.box.x, p.box.y, p.box.width, p.box.height, p.flip) for p in plans]
    where = send(torch.tensor(boxes, dtype=torch.int64), device)
    x, y, width, height, flip = where.unbind(1)
    image = pixels_BHWC.permute(0, 3, 1, 2).to(torch.float32).div_(255)  # [B, 3, H, W]
    if any(plan.color != (1, 1, 1) for plan in plans):
        changes = np.stack([color_change(plan.color) for plan in plans]).astype(np.float32)
        image = _change_colors(image, send(torch.from_numpy(changes), device)).clamp_(0, 1)
    center = channels(mean, device)[..., 0]
    image = image.sub_(center)  # what lies outside gives nothing, which is the mean colour now
    rows = _weights(y, height, size, image.shape[2])
    columns = _weights(x, width, size, image.shape[3])
    columns = torch.where(flip.view(-1, 1, 1) > 0, columns.flip(1), columns)
    with torch.autocast(device.type, enabled=False):  # pixels keep their 8 bits
        image = rows[:, None] @ image @ columns[:, None].transpose(-1, -2)
    augments = [plan.augment for plan in plans]
    if any(plan.repaint for plan in augments):
        rgb = from_parts(image + center)[:, :, None]
        video = normalise(augment(rgb, augments), mean, std)
    else:
        video = (image / channels(std, device)[..., 0])[:, :, None]
    erase(video, augments)
    return video


def _change_colors(image_BCHW: Tensor, affine: Tensor) -> Tensor:
    """RGB in 0–1 by affine maps [B, 3, 4]."""
    weight = affine[..., None, None]  # [B, 3, 4, 1, 1]
    changed = weight[:, :, 0] * image_BCHW[:, :1] + weight[:, :, 3]
    for i in (1, 2):
        changed += weight[:, :, i] * image_BCHW[:, i : i + 1]
    return changed


def _weights(start: Tensor, length: Tensor, size: int, extent: int) -> Tensor:
    """How much each of `extent` pixels gives to each of `size`, [B, size, extent].

    The stretch `start` … `start + length - 1` (int64 [B]) of a line of pixels is resampled with a
    triangle of the wider of both pixel widths, cut at the stretch's ends. Pixels of the border,
    outside the line, take their part of the weight and give nothing.
    """
    device = start.device
    start, length = start.view(-1, 1, 1), length.view(-1, 1, 1)
    ratio = length / size
    center = start + (torch.arange(size, device=device).view(1, -1, 1) + 0.5) * ratio - 0.5
    pixel = torch.arange(-PAD, extent + PAD, device=device).view(1, 1, -1)
    weight = (1 - (pixel - center).abs() / ratio.clamp(min=1)).clamp_(min=0)
    weight = weight * ((pixel >= start) & (pixel < start + length))
    weight = weight / weight.sum(-1, keepdim=True)
    return weight[..., PAD : PAD + extent]
