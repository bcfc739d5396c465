"""Video networks that benchmarks train and run: by name, on clips of noise that stay in memory.

No decoding, no augmentation: what is measured is the network.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from matinee.errors import ConfigError
from matinee.measure.process import wait
from matinee.models.base import VideoModel
from matinee.models.build import build_video_model
from matinee.models.config import Frames, Inflate, Joint, ModelConfig, Shift, Temporal
from matinee.models.layout import to_channels_last
from matinee.training.precision import autocast

CLASSES = 400
WAYS: dict[str, Temporal] = {
    "frames": Frames(),
    "shift": Shift(),
    "3x3x3": Inflate(kernel="3x3x3"),
    "3x1x1": Inflate(kernel="3x1x1"),
    "joint": Joint(),
}
NAMES = {
    "tsn": "resnet50:frames",
    "tsm": "resnet50:shift",
    "i3d_333": "resnet50:3x3x3",
    "i3d_311": "resnet50:3x1x1",
    "vit_s": "vit_small_patch16_224:joint",
    "vit_b": "vit_base_patch16_224:joint",
}
"""Short names; any other network is BACKBONE:WAY."""


def build(name: str, *, frames: int, size: int) -> VideoModel:
    """A network of 400 classes from scratch, the same weights each time.

    Raises:
        ConfigError: no such name, way or backbone, or clips that do not fit it.
    """
    backbone, colon, way = NAMES.get(name, name).rpartition(":")
    if not colon or way not in WAYS:
        raise ConfigError(
            f"no network {name!r}: {', '.join(NAMES)}, or BACKBONE:WAY with a way of "
            f"{', '.join(WAYS)}, such as resnet18:shift"
        )
    torch.manual_seed(0)
    config = ModelConfig(backbone=backbone, temporal=WAYS[way])
    return build_video_model(config, num_classes=CLASSES, frames=frames, size=size)[0]


@dataclass(frozen=True)
class Clips:
    """Of what a step works on: a batch of [B, 3, T, H, W]."""

    batch: int
    frames: int
    size: int

    def __post_init__(self) -> None:
        for name in ("batch", "frames", "size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: at least 1")

    def __str__(self) -> str:
        return f"{self.batch} × {self.frames} frames of {self.size}²"


class TrainingStep:
    """Forward, cross-entropy, backward, SGD with momentum; returns its seconds.

    `compute` is what the forward pass goes through, as `DistributedDataParallel` needs it; `around`
    is entered around both passes.
    """

    def __init__(
        self,
        model: VideoModel,
        clips: Clips,
        device: torch.device,
        *,
        precision: str = "fp32",
        compute: nn.Module | None = None,
    ) -> None:
        self.model, self.device, self.precision = model, device, precision
        self._compute = compute or model
        self._optimizer = torch.optim.SGD(
            model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4
        )
        self._video, self._target = noise(clips, device)

    def __call__(self, around: AbstractContextManager[Any] | None = None) -> float:
        self.model.train()
        wait(self.device)
        begin = time.perf_counter()
        self._optimizer.zero_grad(set_to_none=True)
        with around or nullcontext():
            with autocast(self.precision, self.device):
                loss = F.cross_entropy(self._compute(self._video), self._target)
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        wait(self.device)
        return time.perf_counter() - begin


def inference_step(
    model: VideoModel, clips: Clips, device: torch.device, *, precision: str = "fp32"
) -> Callable[[], float]:
    """A forward pass in evaluation mode that returns its seconds."""
    video, _ = noise(clips, device)

    def step() -> float:
        model.eval()
        wait(device)
        begin = time.perf_counter()
        with torch.inference_mode(), autocast(precision, device):
            model(video)
        wait(device)
        return time.perf_counter() - begin

    return step


def place(model: VideoModel, device: torch.device) -> VideoModel:
    """On the device, with the memory layout that training chooses."""
    model.to(device)
    to_channels_last(model)
    return model


def noise(clips: Clips, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of normal values, and a class for each clip."""
    torch.manual_seed(1)
    video = torch.randn(clips.batch, 3, clips.frames, clips.size, clips.size, device=device)
    return video, torch.arange(clips.batch, device=device) % CLASSES


def gradient_bytes(model: nn.Module) -> int:
    """What an all-reduce of all gradients carries."""
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
