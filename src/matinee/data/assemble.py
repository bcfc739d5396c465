"""From a slot of batch memory and the plans of its clips to the video of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from matinee.data.augment.apply import augment
from matinee.data.augment.erase import erase
from matinee.data.augment.plan import AugmentPlan
from matinee.data.clips import ClipPlan, ClipSpec
from matinee.data.device import after, color_change, normalise, to_rgb, to_video
from matinee.data.transfer import send
from matinee.media.color import ycbcr_to_rgb
from matinee.media.packets import VideoFormat

_UNCHANGED = (1.0, 1.0, 1.0)


def assemble(
    memory: NDArray[np.uint8] | Tensor,
    plans: Sequence[ClipPlan],
    formats: Sequence[VideoFormat],
    spec: ClipSpec,
    *,
    device: torch.device,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
) -> Tensor:
    """float32 [B, 3, T, H, W] on the device, each clip changed as its plan says.

    A GPU gets work for it, and is not waited for.

    Args:
        memory: uint8 [≥ B, T, bytes of an I420 frame]; or RGB on the device, [≥ B, T, 3, H, W].
        plans, formats: of each clip.
    """
    flips, augments = [plan.flip for plan in plans], [plan.augment for plan in plans]
    size = (spec.size, spec.size)
    flip = send(torch.tensor(flips), device) if any(flips) else None
    if isinstance(memory, Tensor):
        rgb = _repainted(memory[: len(plans)], plans, flip)
        video = normalise(augment(rgb, augments), mean, std)
        return _finished(video, augments, spec)
    i420 = torch.from_numpy(memory[: len(plans)]).to(device, non_blocking=device.type == "cuda")
    affine = send(torch.from_numpy(_affine(plans, formats)), device)
    if any(plan.repaint for plan in augments):
        video = normalise(augment(to_rgb(i420, affine, flip, size=size), augments), mean, std)
    else:
        video = to_video(i420, affine, flip, size=size, mean=mean, std=std)
    return _finished(video, augments, spec)


def _finished(video: Tensor, augments: Sequence[AugmentPlan], spec: ClipSpec) -> Tensor:
    """What is left to do to normalised clips."""
    if spec.modality == "difference":
        video = video[:, :, 1:] - video[:, :, :-1]
    erase(video, augments)
    return video


def _repainted(rgb: Tensor, plans: Sequence[ClipPlan], flip: Tensor | None) -> Tensor:
    """uint8 [B, 3, T, H, W] of RGB frames [B, T, 3, H, W], mirrored, with the colours of plans."""
    video = rgb.transpose(1, 2)
    if any(plan.color != _UNCHANGED for plan in plans):
        maps = np.stack([color_change(plan.color) for plan in plans]).astype(np.float32)
        change = send(torch.from_numpy(maps), rgb.device)  # [B, 3, 4], of values in 0–1
        linear = torch.einsum("bij,bjthw->bithw", change[:, :, :3], video.float())
        levels = linear + 255 * change[:, :, 3, None, None, None]
        video = levels.round_().clamp_(0, 255).to(torch.uint8)
    if flip is not None:
        return torch.where(flip.view(-1, 1, 1, 1, 1), video.flip(-1), video)
    return video.contiguous()


def _affine(plans: Sequence[ClipPlan], formats: Sequence[VideoFormat]) -> NDArray[np.float32]:
    """[B, 3, 4]: from the YCbCr of each clip's file to RGB with the colours of its plan."""
    stored: dict[tuple[str, bool], NDArray[np.float64]] = {}
    maps = []
    for plan, fmt in zip(plans, formats, strict=True):
        key = (fmt.matrix, fmt.full_range)
        to_rgb = stored.get(key)
        if to_rgb is None:
            to_rgb = stored[key] = ycbcr_to_rgb(*key)
        maps.append(to_rgb if plan.color == _UNCHANGED else after(to_rgb, color_change(plan.color)))
    return np.stack(maps).astype(np.float32)
