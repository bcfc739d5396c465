"""Reconstruction pictures for a page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from matinee.data.sampling import uniform_segments
from matinee.errors import MatineeError
from matinee.inference.reconstruct import Reconstruction, reconstruct
from matinee.measure.report.rundata import RunData
from matinee.measure.report.strips import FRAMES, Strip, jpeg_uri

ROWS = ("original", "masked", "reconstructed")


@dataclass(frozen=True)
class Drawn:
    """A clip of a run in the three `ROWS`, the same frames in each."""

    sample: str
    split: str | None
    strips: tuple[Strip, ...]


def find_reconstructions(run: RunData, *, count: int) -> tuple[list[Drawn], str]:
    """Clips that a masked run reconstructed, and a remark if there are none.

    They are computed on the CPU, which every machine has and which always gives the same picture.
    """
    if count == 0:
        return [], ""
    try:
        found = reconstruct(run.path, count=count, device="cpu")
    except (MatineeError, OSError) as error:
        return [], f"No reconstruction: {error}"
    return [_drawn(clip) for clip in found], ""


def _drawn(clip: Reconstruction) -> Drawn:
    frames = np.unique(uniform_segments(len(clip.original_THWC), FRAMES)).tolist()
    videos = (clip.original_THWC, clip.masked_THWC, clip.drawn_THWC)
    height, width = clip.original_THWC.shape[1:3]
    strips = tuple(
        Strip(
            sample=clip.sample,
            size=(height, width),
            images=tuple((jpeg_uri(video[i]), f"{row}, frame {i + 1}") for i in frames),
            texts=(),
            error="",
        )
        for row, video in zip(ROWS, videos, strict=True)
    )
    return Drawn(clip.sample, clip.split, strips)
