"""Which network: an image backbone, and the way it becomes a video network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from matinee.errors import ConfigError


@dataclass(frozen=True)
class Frames:
    """Each frame alone, logits averaged over frames (TSN, arXiv 1608.00859)."""

    kind: ClassVar[str] = "frames"


@dataclass(frozen=True)
class Shift:
    """Temporal shift in a 2-D CNN (TSM, arXiv 1811.08383)."""

    kind: ClassVar[str] = "shift"
    placement: Literal["residual", "in-place"] = "residual"
    """residual: inside the residual branch, so that the shortcut keeps the present frame;
    in-place: before the whole block."""
    div: int = 8
    """1/div of the channels goes each way."""
    every: int | None = None
    """Shift in every n-th block; None: TSM's rule (every second in networks as deep as
    ResNet-101)."""
    causal: bool = False
    """Only from the past: the network can then follow live video, frame by frame."""
    pool: bool = False
    """Halve the frames before the second stage (temporal pooling; ResNets)."""
    non_local: bool = False
    """Five non-local blocks (arXiv 1711.07971), at first without effect (ResNet-50 and deeper)."""

    def __post_init__(self) -> None:
        if self.div < 2:
            raise ConfigError(f"--model.temporal.div {self.div}: at least 2")
        if self.every is not None and self.every < 1:
            raise ConfigError(f"--model.temporal.every {self.every}: at least 1")


@dataclass(frozen=True)
class Inflate:
    """2-D kernels become 3-D ones (I3D, arXiv 1705.07750)."""

    kind: ClassVar[str] = "inflate"
    kernel: Literal["3x3x3", "3x1x1"] = "3x3x3"
    """3x3x3: the 3×3 convolution of a block; 3x1x1: its first 1×1 convolution."""
    every: int = 1
    """Inflate every n-th block of a stage, from its first."""
    init: Literal["center", "average"] = "center"
    """center: the image kernel in the middle, zeros beside it; average: a third in each."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ConfigError(f"--model.temporal.every {self.every}: at least 1")


@dataclass(frozen=True)
class Joint:
    """Joint space-time attention in a ViT: all patches of all frames see each other."""

    kind: ClassVar[str] = "joint"
    tubelet: Literal[1, 2] = 1
    """Frames of a patch."""
    positions: Literal["learned", "sine"] = "learned"
    """learned: the image's position embedding plus a temporal one that starts at zero; sine:
    VideoMAE's fixed table over space and time, with mean pooling instead of a class token."""
    class_token: Literal["frame", "clip"] = "frame"
    """frame: one a frame, so that a still video has the image network's features; clip: a single
    one, as weights published by AVION and LaViLa have it."""
    patch_dropout: float = 0.0
    """Part of the patches left out in training (arXiv 2212.00794)."""

    def __post_init__(self) -> None:
        if not 0 <= self.patch_dropout < 1:
            raise ConfigError(f"--model.temporal.patch-dropout {self.patch_dropout}: in [0, 1)")


Temporal = Frames | Shift | Inflate | Joint


@dataclass(frozen=True)
class ModelConfig:
    """Which network."""

    backbone: str = "resnet50"
    """Any timm image network: CNNs for frames, shift and inflate, ViTs for joint."""
    temporal: Temporal = field(default_factory=Shift)
    """How it sees time; the recipe chooses the kind."""
    dropout: float = 0.5
    """Before the classifier; TSM's default for fine-tuning."""
    drop_path: float = 0.0
    """Probability that a residual branch of the last block is left out, rising from 0 at the first
    (arXiv 1603.09382)."""
    partial_bn: bool = False
    """Keep all batch normalisation but the first as the pretrained weights have it (TSN)."""
    small_input: bool = False
    """For pictures of 32²: a CNN's first convolution is 3×3 with stride 1, and no pooling follows
    it (arXiv 1512.03385, §4.2)."""
    patch_size: int | None = None
    """Pixels of a ViT's patch, each way; None: the backbone's own."""
    pretrained: str = "none"
    """none, a file of published or exported weights, a run's last.pt, or `timm`: fetch them
    (network)."""

    def __post_init__(self) -> None:
        for name in ("dropout", "drop_path"):
            if not 0 <= getattr(self, name) < 1:
                flag = f"--model.{name.replace('_', '-')}"
                raise ConfigError(f"{flag} {getattr(self, name)}: in [0, 1)")
        if self.patch_size is not None and self.patch_size < 1:
            raise ConfigError(f"--model.patch-size {self.patch_size}: at least 1")
        if self.partial_bn and isinstance(self.temporal, Joint):
            raise ConfigError("--model.partial-bn has no effect on a ViT")
