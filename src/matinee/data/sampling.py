"""Which frames a clip takes. Pure functions of lengths and a random generator.

All return int64 [T] frame numbers within the sample, 0 … num_frames - 1.
"""

from __future__ import annotations

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
    Segments shorter than a frame repeat frames.

    Source: Temporal Segment Networks, arXiv 1608.00859, §3.1.
    """
    place = rng.random(frames) if rng is not None else np.full(frames, phase)
    index = np.floor((np.arange(frames) + place) * (num_frames / frames)).astype(np.int64)
    return np.minimum(index, num_frames - 1)


def dense(
    num_frames: int,
    frames: int,
    stride: int,
    *,
    rng: np.random.Generator | None = None,
    position: float = 0.5,
    short: Short = "loop",
    align: int = 0,
) -> NDArray[np.int64]:
    """`frames` frames, `stride` apart, starting at random (`rng`) or at `position` in [0, 1].

    A sample shorter than the clip starts over ("loop"), repeats its last frame ("hold"), or is an
    error ("refuse"). `align` is the number of the sample's first frame in its video: starts are
    then chosen so that video frame numbers are multiples of `stride`, which a layered pack decodes
    fastest; -1 leaves them anywhere.

    Raises:
        ConfigError: a short sample under "refuse".
    Source: I3D's dense sampling, e.g. Non-local Networks, arXiv 1711.07971, §4.
    """
    span = (frames - 1) * stride + 1
    room = num_frames - span
    if room < 0:
        if short == "refuse":
            raise ConfigError(
                f"a clip of {frames}x{stride} spans {span} frames, this sample has {num_frames}: "
                "choose a shorter clip, or --clip.short loop or hold"
            )
        index = np.arange(frames, dtype=np.int64) * stride
        return index % num_frames if short == "loop" else np.minimum(index, num_frames - 1)
    first = -align % stride if align >= 0 else 0
    step = stride if align >= 0 else 1
    if first > room:  # no aligned start leaves enough frames: start anywhere
        first, step = 0, 1
    choices = (room - first) // step + 1
    pick = int(rng.integers(choices)) if rng is not None else round(position * (choices - 1))
    return first + pick * step + np.arange(frames, dtype=np.int64) * stride
