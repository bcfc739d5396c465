"""What happens to a clip's picture beyond crop, mirroring and colour factors, in numbers alone.

# Note [One look a clip]
All frames of a clip get the same operations with the same numbers: what differs between frames is
then the motion. Operations that look at the picture (autocontrast, equalise, contrast) look at each
frame, as they do wherever frames are pictures in a list, and noise is new in each frame.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

Part = tuple[float, float, float, float]
"""Top, bottom, left and right of a box, in parts of the picture."""

Name = Literal[
    "autocontrast",
    "equalize",
    "invert",
    "rotate",
    "posterize",
    "solarize",
    "solarize-add",
    "color",
    "contrast",
    "brightness",
    "sharpness",
    "shear-x",
    "shear-y",
    "translate-x",
    "translate-y",
]
NAMES: tuple[Name, ...] = Name.__args__  # type: ignore[attr-defined]
MAX_MAGNITUDE = 10.0


@dataclass(frozen=True)
class Operation:
    """One operation of RandAugment and its number.

    `value`: degrees (rotate, anticlockwise), horizontal shift per row (shear-x; shear-y the other
    way), part of the side (translate-x, translate-y), bits kept (posterize), level from which on
    pixels are inverted (solarize), levels added to those below 128 (solarize-add), a factor, 1 for
    no change (color, contrast, brightness, sharpness); 0 where there is none.
    """

    name: Name
    value: float = 0.0


@dataclass(frozen=True)
class AugmentPlan:
    """What is done to the picture of one clip, in this order.

    `repaint`: take it in 8-bit RGB, where what follows happens; so does every clip to which it
    might, lest rounding depend on the clips beside it. `hue`: turn of the hue circle, -0.5 … 0.5;
    `operations`; `blur`: deviation of a Gaussian in pixels, 0 for none. `erase`: boxes that are
    blanked in all frames, with noise from the seed `noise`, or with the mean colour where it is
    None.
    """

    repaint: bool = False
    hue: float = 0.0
    operations: tuple[Operation, ...] = ()
    blur: float = 0.0
    erase: tuple[Part, ...] = ()
    noise: int | None = None

    @property
    def changes(self) -> bool:
        """Whether the repainted picture is another one."""
        return bool(self.hue or self.operations or self.blur)


NO_CHANGE = AugmentPlan()


class AugmentSpec(Protocol):
    """The settings that `plan_augment` reads; see `ClipSpec`."""

    @property
    def hue(self) -> float: ...
    @property
    def rand_augment(self) -> int: ...
    @property
    def rand_magnitude(self) -> float: ...
    @property
    def rand_deviation(self) -> float: ...
    @property
    def rand_probability(self) -> float: ...
    @property
    def blur(self) -> float: ...
    @property
    def blur_sigma(self) -> tuple[float, float]: ...
    @property
    def erasing(self) -> float: ...
    @property
    def erasing_fill(self) -> Literal["mean", "noise"]: ...
    @property
    def erasing_area(self) -> tuple[float, float]: ...
    @property
    def erasing_aspect(self) -> tuple[float, float]: ...
    @property
    def erasing_count(self) -> tuple[int, int]: ...


def plan_augment(spec: AugmentSpec, rng: np.random.Generator) -> AugmentPlan:
    """One clip's plan; settings that are off draw nothing that others depend on."""
    erase: tuple[Part, ...] = ()
    noise = None
    if rng.random() < spec.erasing:
        low, high = spec.erasing_count
        count = low if low == high else int(rng.integers(low, high + 1))
        area = (spec.erasing_area[0] / count, spec.erasing_area[1] / count)
        erase = tuple(random_part(rng, area, spec.erasing_aspect) for _ in range(count))
        noise = int(rng.integers(2**62)) if spec.erasing_fill == "noise" else None
    hue = spec.hue * float(rng.uniform(-1, 1)) if spec.hue else 0.0
    operations: tuple[Operation, ...] = ()
    if spec.rand_augment:
        operations = plan_rand_augment(
            rng, spec.rand_augment, spec.rand_magnitude, spec.rand_deviation, spec.rand_probability
        )
    blur = 0.0
    if spec.blur and rng.random() < spec.blur:
        blur = float(rng.uniform(*spec.blur_sigma))
    repaint = bool(spec.hue or spec.rand_augment or spec.blur)
    return AugmentPlan(repaint, hue, operations, blur, erase, noise)


def plan_rand_augment(
    rng: np.random.Generator,
    count: int,
    magnitude: float,
    deviation: float = 0.5,
    probability: float = 0.5,
) -> tuple[Operation, ...]:
    """Draw `count` operations, each alike likely; each is done with `probability`.

    Magnitudes follow a normal distribution about `magnitude` and are kept within 0 … 10; more is
    stronger for all operations, and what has two directions takes either.

    Source: RandAugment, arXiv 1909.13719, in the variant of published video and ViT recipes (such
    as `rand-m7-n4-mstd0.5-inc1`).
    """
    drawn = []
    for index in rng.integers(len(NAMES), size=count):
        level = min(max(rng.normal(magnitude, deviation), 0.0), MAX_MAGNITUDE)
        sign = -1 if rng.random() < 0.5 else 1
        if rng.random() < probability:
            drawn.append(operation_at(NAMES[index], level, sign))
    return tuple(drawn)


def operation_at(name: Name, level: float, sign: int = 1) -> Operation:
    """The operation at a magnitude of 0 … 10; `sign`: which of its two directions."""
    part = level / MAX_MAGNITUDE
    match name:
        case "rotate":
            value = sign * 30 * part
        case "posterize":
            value = 4 - int(4 * part)
        case "solarize":
            value = 256 - int(256 * part)
        case "solarize-add":
            value = int(110 * part)
        case "color" | "contrast" | "brightness" | "sharpness":
            value = max(0.1, 1 + sign * 0.9 * part)
        case "shear-x" | "shear-y":
            value = sign * 0.3 * part
        case "translate-x" | "translate-y":
            value = sign * 0.45 * part
        case _:
            value = 0.0
    return Operation(name, float(value))


def random_part(
    rng: np.random.Generator, area: tuple[float, float], aspect: tuple[float, float]
) -> Part:
    """A box of random area and aspect (width/height), anywhere; a side longer than the picture is
    cut to it.

    Source: Random Erasing, arXiv 1708.04896, §3.2.
    """
    size = rng.uniform(*area)
    ratio = math.exp(rng.uniform(math.log(aspect[0]), math.log(aspect[1])))
    height, width = min(1.0, math.sqrt(size / ratio)), min(1.0, math.sqrt(size * ratio))
    top, left = rng.uniform(0, 1 - height), rng.uniform(0, 1 - width)
    return top, top + height, left, left + width
