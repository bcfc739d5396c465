"""Clip plans: everything about a clip that is decided before any byte is read.

A plan is a pure function of the sample, the spec and a random generator, so it can be printed,
compared and tested, and is the same whoever decodes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from matinee.data.augment.plan import MAX_MAGNITUDE, NO_CHANGE, AugmentPlan, plan_augment
from matinee.data.crops import center_box, multi_scale_box, random_resized_box
from matinee.data.sampling import Short, dense, uniform_segments
from matinee.errors import ConfigError
from matinee.media.decode import Box
from matinee.pack.reading.reader import SampleInfo


@dataclass(frozen=True)
class ClipSpec:
    """What a clip looks like, and how training varies it."""

    frames: int = 8
    """T, frames of a clip."""
    sampling: Literal["uniform", "dense"] = "uniform"
    """uniform: one frame from each of T equal segments (TSN), from the sample's start to its end;
    dense: T frames, `stride` apart."""
    stride: int = 4
    """Frames between two frames of a dense clip; pack with the same stride for fast decoding."""
    fps: float | None = None
    """Frames a second of a dense clip, in place of `stride`: those nearest to t, t + 1/fps … in the
    video's own rate, so that videos of different rates look equally fast."""
    modality: Literal["rgb", "difference"] = "rgb"
    """difference: each frame minus the one before it, so that only what moves is seen; T + 1 frames
    are decoded (TSN, arXiv 1608.00859, §3.2)."""
    size: int = 112
    """Height and width of the clip in pixels; even."""
    crop: Literal["random-resized", "multi-scale", "center", "pad"] = "random-resized"
    """How training crops; evaluation always takes the centre (or several views). pad, for image
    sets: the whole picture, moved by up to 4 pixels over a border of the mean colour (ResNet,
    arXiv 1512.03385, §4.2); evaluation then takes the whole picture."""
    scale: tuple[float, float] = (0.4, 1.0)
    """Area of a random-resized crop, as parts of the picture."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Aspect (width/height) of a random-resized crop."""
    center_scale: float = 0.875
    """Side of the centre crop in evaluation, as part of the short side (224 of 256)."""
    flip: Literal["none", "horizontal"] = "none"
    """horizontal: mirror half of the training clips. Off: labels may have a direction."""
    flip_swap: tuple[str, ...] = ()
    """Classes that turn into each other when mirrored, as `left=right`; needs flip horizontal."""
    brightness: float = 0.0
    """Training multiplies RGB by a factor from [1 - b, 1 + b], one for the whole clip."""
    contrast: float = 0.0
    """Training scales the distance from mid-grey by a factor from [1 - c, 1 + c]."""
    saturation: float = 0.0
    """Training scales the distance from grey of equal luma by a factor from [1 - s, 1 + s]; the
    order is brightness, contrast, saturation, hue."""
    hue: float = 0.0
    """Training turns the hue by a part of its circle from [-h, h]; at most 0.5."""
    grayscale: float = 0.0
    """Probability that a training clip loses all colour; at 1 evaluation does without it too."""
    rand_augment: int = 0
    """RandAugment (arXiv 1909.13719): operations drawn for each training clip, the same in all of
    its frames; rand-m7-n4-mstd0.5-inc1 of published recipes is 4 with a magnitude of 7."""
    rand_magnitude: float = 9.0
    """How strong they are, 0–10."""
    rand_deviation: float = 0.5
    """Of a normal distribution about the magnitude, drawn anew for each operation."""
    rand_probability: float = 0.5
    """That an operation drawn is done."""
    blur: float = 0.0
    """Probability that a training clip is blurred."""
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    """Deviation of the Gaussian, in pixels."""
    erasing: float = 0.0
    """Probability that boxes of a training clip are blanked, the same in all of its frames
    (arXiv 1708.04896)."""
    erasing_fill: Literal["mean", "noise"] = "mean"
    """With the mean colour, or with noise: each value normal, mean 0 and deviation 1 after
    normalisation, new in each frame."""
    erasing_area: tuple[float, float] = (0.02, 0.2)
    """Of all boxes of a clip, as parts of the picture."""
    erasing_aspect: tuple[float, float] = (1 / math.e, math.e)
    """Aspect (width/height) of a box."""
    erasing_count: tuple[int, int] = (1, 1)
    """Fewest and most boxes of a clip."""
    short: Short = "loop"
    """A sample shorter than a dense clip: start over (modulo its length), hold the last frame, or
    refuse."""
    align: bool = True
    """Start dense clips at multiples of `stride`, where a layered pack decodes fastest."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("sampling", self.sampling, ("uniform", "dense")),
            ("short", self.short, ("loop", "hold", "refuse")),
            ("modality", self.modality, ("rgb", "difference")),
            ("crop", self.crop, ("random-resized", "multi-scale", "center", "pad")),
            ("flip", self.flip, ("none", "horizontal")),
        ):
            if value not in known:
                raise ConfigError(f"--clip.{name} {value!r}: one of {', '.join(known)}")
        checks = [
            (self.frames >= 1, f"--clip.frames {self.frames}: a clip needs at least 1 frame"),
            (self.stride >= 1, f"--clip.stride {self.stride}: at least 1"),
            (
                self.fps is None or 0 < self.fps < math.inf,
                f"--clip.fps {self.fps}: a positive number",
            ),
            (
                self.fps is None or self.sampling == "dense",
                "--clip.fps has no effect without --clip.sampling dense",
            ),
            (
                self.size >= 16 and self.size % 2 == 0,
                f"--clip.size {self.size}: an even number of 16 or more pixels",
            ),
            (
                0 < self.scale[0] <= self.scale[1] <= 1,
                f"--clip.scale {self.scale}: needs 0 < smallest <= largest <= 1",
            ),
            (
                0 < self.ratio[0] <= self.ratio[1],
                f"--clip.ratio {self.ratio}: needs 0 < smallest <= largest",
            ),
            (0 < self.center_scale <= 1, f"--clip.center-scale {self.center_scale}: in (0, 1]"),
            (
                0 <= self.hue <= 0.5,
                f"--clip.hue {self.hue}: between 0 and 0.5, half the circle either way",
            ),
            (self.rand_augment >= 0, f"--clip.rand-augment {self.rand_augment}: at least 0"),
            (
                0 <= self.rand_magnitude <= MAX_MAGNITUDE,
                f"--clip.rand-magnitude {self.rand_magnitude}: between 0 and 10",
            ),
            (self.rand_deviation >= 0, f"--clip.rand-deviation {self.rand_deviation}: at least 0"),
            (
                0 < self.blur_sigma[0] <= self.blur_sigma[1] <= self.size / 8,
                f"--clip.blur-sigma {self.blur_sigma}: needs 0 < smallest <= largest <= an eighth "
                "of --clip.size",
            ),
            (
                0 < self.erasing_area[0] <= self.erasing_area[1] <= 1,
                f"--clip.erasing-area {self.erasing_area}: needs 0 < smallest <= largest <= 1",
            ),
            (
                0 < self.erasing_aspect[0] <= self.erasing_aspect[1],
                f"--clip.erasing-aspect {self.erasing_aspect}: needs 0 < smallest <= largest",
            ),
            (
                1 <= self.erasing_count[0] <= self.erasing_count[1],
                f"--clip.erasing-count {self.erasing_count}: needs 1 <= fewest <= most",
            ),
            (
                not self.flip_swap or self.flip == "horizontal",
                "--clip.flip-swap has no effect without --clip.flip horizontal",
            ),
            *(
                (0 <= value <= 1, f"--clip.{name} {value}: between 0 and 1")
                for name, value in (
                    ("brightness", self.brightness),
                    ("contrast", self.contrast),
                    ("saturation", self.saturation),
                    ("grayscale", self.grayscale),
                    ("rand-probability", self.rand_probability),
                    ("blur", self.blur),
                    ("erasing", self.erasing),
                )
            ),
        ]
        for holds, message in checks:
            if not holds:
                raise ConfigError(message)

    @property
    def decoded_frames(self) -> int:
        """Frames to decode for a clip."""
        return self.frames + (self.modality == "difference")

    def stride_at(self, fps: Fraction) -> int | Fraction:
        """Frames between two of a dense clip, in a video of this rate."""
        return self.stride if self.fps is None else fps / Fraction(str(self.fps))

    def swaps(self, classes: tuple[str, ...]) -> dict[int, int]:
        """Class index → class index when mirrored.

        Raises:
            ConfigError: a pair that is not `a=b`, or an unknown label.
        """
        table: dict[int, int] = {}
        for pair in self.flip_swap:
            names = pair.split("=")
            if len(names) != 2:
                raise ConfigError(f"--clip.flip-swap {pair!r}: expected left=right")
            for name in names:
                if name not in classes:
                    raise ConfigError(
                        f"--clip.flip-swap {pair!r}: unknown label {name!r}; "
                        f"the labels are {', '.join(classes[:10])}"
                    )
            a, b = classes.index(names[0]), classes.index(names[1])
            table[a], table[b] = b, a
        return table


@dataclass(frozen=True)
class ClipPlan:
    """One clip: which frames, which crop, mirrored or not, which colours, what is done to them.

    `frames` are numbers within the video; `color` holds the factors (brightness, contrast,
    saturation).
    """

    sample: str
    video: str
    frames: tuple[int, ...]
    box: Box
    flip: bool = False
    color: tuple[float, float, float] = (1.0, 1.0, 1.0)
    augment: AugmentPlan = NO_CHANGE


@dataclass(frozen=True)
class View:
    """One of several looks at a sample in evaluation: `temporal` of `of_temporal`, and so on."""

    temporal: int = 0
    of_temporal: int = 1
    spatial: int = 0
    of_spatial: int = 1


def check_clip_spec(spec: ClipSpec) -> None:
    """Refuse what clips of videos cannot be.

    Raises:
        ConfigError: padding.
    """
    if spec.crop == "pad":
        raise ConfigError("--clip.crop pad is for image sets; for videos: random-resized")


def check_crops(crops: int, views: tuple[int, int] | None) -> None:
    """Refuse what cannot be the number of training crops of a decoded clip.

    Raises:
        ConfigError: none, or several in evaluation.
    """
    if crops < 1:
        raise ConfigError(f"crops {crops}: at least 1")
    if crops > 1 and views is not None:
        raise ConfigError(f"crops {crops} are for training; evaluation takes views")


def check_clips(clips: int, views: tuple[int, int] | None) -> None:
    """Refuse what cannot be the number of training clips of a sample in one batch.

    Raises:
        ConfigError: none, or several in evaluation.
    """
    if clips < 1:
        raise ConfigError(f"clips {clips}: at least 1")
    if clips > 1 and views is not None:
        raise ConfigError(f"clips {clips} are for training; evaluation takes views")


def plan_training_clip(
    info: SampleInfo,
    spec: ClipSpec,
    rng: np.random.Generator,
    look: np.random.Generator | None = None,
) -> ClipPlan:
    """A random clip of a sample.

    Args:
        look: decides on crop, mirroring, colours and blanking; `rng` then on the frames alone.

    Raises:
        ConfigError: the sample is too short and `spec.short` is "refuse".
    """
    check_clip_spec(spec)
    if spec.sampling == "uniform":
        frames = uniform_segments(info.num_frames, spec.decoded_frames, rng=rng)
    else:
        frames = dense(
            info.num_frames, spec.decoded_frames, spec.stride_at(info.fps), rng=rng,
            short=spec.short, align=info.first_frame if spec.align else -1,
        )  # fmt: skip
    rng = rng if look is None else look
    picture = (info.width, info.height)
    if spec.crop == "random-resized":
        box = random_resized_box(picture, rng, spec.scale, spec.ratio)
    elif spec.crop == "multi-scale":
        box = multi_scale_box(picture, rng)
    else:
        box = center_box(picture, spec.center_scale)
    flip = bool(rng.random() < 0.5) and spec.flip == "horizontal"
    draw = rng.uniform(-1, 1, 3)
    gray = bool(rng.random() < spec.grayscale)
    color = (
        1 + spec.brightness * float(draw[0]),
        1 + spec.contrast * float(draw[1]),
        0.0 if gray else 1 + spec.saturation * float(draw[2]),
    )
    numbers = tuple((frames + info.first_frame).tolist())
    return ClipPlan(info.id, info.video, numbers, box, flip, color, plan_augment(spec, rng))


def plan_evaluation_clip(info: SampleInfo, spec: ClipSpec, view: View) -> ClipPlan:
    """The clip of one view: temporal views spread evenly, spatial ones along the long side.

    One spatial view is the centre crop of `spec.center_scale`; several are squares of the full
    short side, as in Non-local Networks, arXiv 1711.07971, §4.
    """
    if spec.sampling == "uniform":
        phase = (view.temporal + 0.5) / view.of_temporal
        frames = uniform_segments(info.num_frames, spec.decoded_frames, phase=phase)
    else:
        last = view.of_temporal - 1
        frames = dense(
            info.num_frames, spec.decoded_frames, spec.stride_at(info.fps), short=spec.short,
            position=view.temporal / last if last else 0.5,
            align=info.first_frame if spec.align else -1,
        )  # fmt: skip
    picture = (info.width, info.height)
    if view.of_spatial == 1:
        box = center_box(picture, spec.center_scale)
    else:
        box = center_box(picture, 1.0, place=view.spatial / (view.of_spatial - 1))
    numbers = tuple((frames + info.first_frame).tolist())
    color = (1.0, 1.0, 0.0 if spec.grayscale == 1 else 1.0)
    return ClipPlan(info.id, info.video, numbers, box, color=color)
