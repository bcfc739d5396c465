"""Which frames a clip takes. Pure functions of lengths and a random generator.

All return int64 [T] frame numbers within the sample, 0 … num_frames - 1.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from matinee.errors import ConfigError

Short = Literal["loop", "hold", "refuse"]


def uniform_segments(
    num_frames: int, frames: int, *, rng: np.random.Generator | None = None, phase: float = 0.5
) -> NDArray[np.int64]:
    """One frame from each of `frames` equal segments that cover the whole sample.

    With `rng`, a random place in each segment; without, the place `phase` in [0, 1) of each.
    Segments shorter than a frame repeat frames. So are also taken the clips of a narration from its
    start to its end.

    Source: Temporal Segment Networks, arXiv 1608.00859, §3.1; LaViLa, arXiv 2212.04501, §4.
    """
    place = rng.random(frames) if rng is not None else np.full(frames, phase)
    index = np.floor((np.arange(frames) + place) * (num_frames / frames)).astype(np.int64)
    return np.minimum(index, num_frames - 1)


def dense(
    num_frames: int,
    frames: int,
    stride: int | Fraction,
    *,
    rng: np.random.Generator | None = None,
    position: float = 0.5,
    short: Short = "loop",
    align: int = 0,
) -> NDArray[np.int64]:
    """`frames` frames, `stride` apart, starting at random (`rng`) or at `position` in [0, 1].

    A stride that is no whole number, as a frame rate asks for, takes the frames nearest to its
    multiples, of two equally near ones the later; below 1 frames repeat.

    A sample shorter than the clip starts over ("loop"), repeats its last frame ("hold"), or is an
    error ("refuse"). `align` is the number of the sample's first frame in its video: starts are
    then chosen so that video frame numbers are multiples of `stride` (a whole one), which a layered
    pack decodes fastest; -1 leaves them anywhere.

    Raises:
        ConfigError: a short sample under "refuse".
    Source: I3D's dense sampling, e.g. Non-local Networks, arXiv 1711.07971, §4.
    """
    steps = nearest_multiples(stride, frames)
    span = int(steps[-1]) + 1
    room = num_frames - span
    if room < 0:
        if short == "refuse":
            raise ConfigError(
                f"a clip of {frames}x{float(stride):g} spans {span} frames, this sample has "
                f"{num_frames}: choose a shorter clip, or --clip.short loop or hold"
            )
        return steps % num_frames if short == "loop" else np.minimum(steps, num_frames - 1)
    step = int(stride) if align >= 0 and stride == int(stride) else 1
    first = -align % step
    if first > room:  # no aligned start leaves enough frames: start anywhere
        first, step = 0, 1
    choices = (room - first) // step + 1
    pick = int(rng.integers(choices)) if rng is not None else round(position * (choices - 1))
    return first + pick * step + steps


def nearest_multiples(stride: int | Fraction, count: int) -> NDArray[np.int64]:
    """The whole numbers nearest to multiples of `stride`; of two equally near ones the larger."""
    top, bottom = stride.numerator, stride.denominator
    exact = [(2 * i * top + bottom) // (2 * bottom) for i in range(count)]
    return np.array(exact, dtype=np.int64)
