"""What training scripts usually do: the pipeline that the fast one is compared with.

# Note [Before]
As in the scripts that came with VideoMAE (arXiv 2203.12602) and LaViLa (arXiv 2212.04501): in each
worker of torch's DataLoader decord opens the file and decodes whole frames, PIL crops and scales
each, frames become float32 and are normalised, and float32 goes to the training process. Attention
computes its matrix of tokens × tokens and keeps it for the backward pass.

What is decoded, cropped and mirrored comes from matinee's plans, so that before and after see the
same clips, and differ in how they get them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from matinee.data.batch import Batch
from matinee.data.clips import ClipPlan
from matinee.data.device import IMAGENET_MEAN, IMAGENET_STD
from matinee.data.random import integer_seed
from matinee.errors import ConfigError
from matinee.extras import require
from matinee.measure.reproduce.avion.footage import Video
from matinee.media.decode import Box

AHEAD = 1
"""Batches that each worker makes ahead; with two workers as many as matinee's loader by default."""


@dataclass(frozen=True)
class BeforeClips(Dataset[tuple[Tensor, int]]):
    """Item i: the clip of plan number i, float32 [3, T, H, W], and i. See Note [Before].

    `picture` (width, height) is that of the frames in which the plans' boxes are given, `loop` the
    frames after which the footage repeats in the file; clips are spread over its repetitions.
    """

    video: Video
    plans: Sequence[ClipPlan]
    picture: tuple[int, int]
    size: int
    loop: int

    def __len__(self) -> int:
        return len(self.plans)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        plan = self.plans[index]
        whole = self.decode(index)
        box = scaled(plan.box, self.picture, (self.video.width, self.video.height))
        return to_float(crop(whole, box, self.size, flip=plan.flip)), index

    def decode(self, index: int) -> NDArray[np.uint8]:
        """Whole frames, RGB [T, H, W, 3]."""
        reader = open_decord(self.video)
        frames: NDArray[np.uint8] = reader.get_batch(self.frames(index)).asnumpy()
        return frames

    def frames(self, index: int) -> list[int]:
        """Numbers in the file."""
        turn = integer_seed(0, 0, index, "turn") % self.video.times
        return [frame + turn * self.loop for frame in self.plans[index].frames]


def open_decord(video: Video) -> Any:
    """A reader of one thread.

    Raises:
        MissingExtra: decord is not installed.
    """
    decord = require("decord", "bench")
    return decord.VideoReader(str(video.path), ctx=decord.cpu(0), num_threads=1)


def scaled(box: Box, picture: tuple[int, int], to: tuple[int, int]) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a box in the same picture of another size (width, height)."""
    x, y = to[0] / picture[0], to[1] / picture[1]
    return (
        round(x * box.x), round(y * box.y),
        round(x * (box.x + box.width)), round(y * (box.y + box.height)),
    )  # fmt: skip


def crop(
    frames: NDArray[np.uint8], box: tuple[int, int, int, int], size: int, *, flip: bool
) -> NDArray[np.uint8]:
    """Crop, scale and mirror RGB frames one by one with PIL: [T, size, size, 3]."""
    image = require("PIL.Image", "train")
    pictures = []
    for frame in frames:
        picture = image.fromarray(frame).crop(box).resize((size, size), image.Resampling.BILINEAR)
        if flip:
            picture = picture.transpose(image.Transpose.FLIP_LEFT_RIGHT)
        pictures.append(np.asarray(picture))
    return np.stack(pictures)


def to_float(frames_THWC: NDArray[np.uint8]) -> Tensor:
    """Normalised float32 [3, T, H, W]."""
    video = torch.from_numpy(frames_THWC).permute(3, 0, 1, 2).contiguous().float().div(255)
    mean, std = (torch.tensor(v)[:, None, None, None] for v in (IMAGENET_MEAN, IMAGENET_STD))
    return (video - mean) / std


def before_batches(
    clips: BeforeClips, *, batch: int, workers: int, texts: Sequence[str] = ()
) -> Iterator[Batch]:
    """One pass over the plans, in their order, in batches as matinee's loader hands them out."""
    loader = DataLoader(
        clips, batch, num_workers=workers, prefetch_factor=AHEAD if workers else None,
        drop_last=True,
    )  # fmt: skip
    for video, index in loader:
        rows = index.tolist()
        yield Batch(
            video=video, target=torch.full((batch,), -1), valid=torch.ones(batch, dtype=torch.bool),
            index=index, samples=tuple(clips.plans[row].sample for row in rows), num_valid=batch,
            texts=tuple(texts[row] for row in rows) if texts else ("",) * batch, seeds=index,
        )  # fmt: skip


def set_attention(network: nn.Module, *, explicit: bool) -> int:
    """Have timm's attention layers write their matrix, or not; how many there are.

    Raises:
        ConfigError: there are none.
    """
    layers: list[Any] = [module for module in network.modules() if hasattr(module, "fused_attn")]
    if not layers:
        raise ConfigError(f"{type(network).__name__} has no attention layers of timm: take a ViT")
    for layer in layers:
        layer.fused_attn = not explicit
    return len(layers)
