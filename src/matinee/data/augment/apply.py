"""Does what plans say, for a batch of clips in 8-bit RGB.

# Note [Clips by operation]
The device is never asked anything: which clip gets which operation is known on the host. All clips
of a block whose next operation is of one kind are gathered, changed and put back, so the number of
kernels depends on the kinds of operation and not on the clips. On a GPU the whole batch is one
block; on a CPU a few frames are, which go through all of their operations while they are in its
cache. Both give the same pixels: no operation mixes clips or frames.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from matinee.data.augment import jitter, tones
from matinee.data.augment.blocks import blocks
from matinee.data.augment.plan import AugmentPlan, Name, Operation
from matinee.data.augment.warp import matrix_of, warp
from matinee.data.transfer import send

TONES: dict[Name, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": tones.autocontrast,
    "equalize": tones.equalize,
    "invert": tones.invert,
    "posterize": tones.posterize,
    "solarize": tones.solarize,
    "solarize-add": tones.solarize_add,
    "color": tones.color,
    "contrast": tones.contrast,
    "brightness": tones.brightness,
    "sharpness": tones.sharpness,
}
"""The operations of `plan.NAMES` that move no pixel."""

Change = Callable[[Tensor, Tensor], Tensor]
"""Of clips, uint8 [R, 3, T, H, W], by numbers, float32 [R, any]."""


def augment(video_BCTHW: Tensor, plans: Sequence[AugmentPlan]) -> Tensor:
    """Turn hues, do the operations and blur, as planned, without waiting for the device.

    Args:
        video_BCTHW: uint8 RGB; contiguous. It is changed.
    """
    clips, _, length, height, width = video_BCTHW.shape
    for rows, frames in blocks(clips, length, height * width, video_BCTHW.device):
        if any(plan.changes for plan in plans[rows]):
            block = video_BCTHW[rows, :, frames]
            block.copy_(_augment(block.contiguous(), plans[rows]))
    return video_BCTHW


def _augment(video: Tensor, plans: Sequence[AugmentPlan]) -> Tensor:
    turns = {row: [plan.hue] for row, plan in enumerate(plans) if plan.hue}
    video = _change(video, jitter.turn_hue, turns)
    for step in range(max(len(plan.operations) for plan in plans)):
        kinds: dict[Change, dict[int, Sequence[float]]] = {}
        for row, plan in enumerate(plans):
            if step < len(plan.operations):
                change, numbers = _change_of(plan.operations[step], video)
                kinds.setdefault(change, {})[row] = numbers
        for change, rows in kinds.items():
            video = _change(video, change, rows)
    sigmas = {row: plan.blur for row, plan in enumerate(plans) if plan.blur}
    if sigmas:
        radius = max(map(jitter.blur_radius, sigmas.values()))
        weights = {row: jitter.blur_weights(sigma, radius) for row, sigma in sigmas.items()}
        video = _change(video, jitter.blur, weights)
    return video


def _change_of(operation: Operation, video: Tensor) -> tuple[Change, Sequence[float]]:
    matrix = matrix_of(operation, (video.shape[-2], video.shape[-1]))
    if matrix is not None:
        return warp, matrix
    return TONES[operation.name], [operation.value]


def _change(video: Tensor, change: Change, numbers: Mapping[int, Sequence[float]]) -> Tensor:
    """The clips with those in the rows of `numbers` changed."""
    if not numbers:
        return video
    value = send(torch.tensor(list(numbers.values()), dtype=torch.float32), video.device)
    if len(numbers) == len(video):
        return change(video, value)
    rows = send(torch.tensor(list(numbers)), video.device)
    return video.index_copy(0, rows, change(video.index_select(0, rows), value))
