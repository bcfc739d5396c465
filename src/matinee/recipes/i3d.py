"""I3D by inflation, beside TSM: the comparison of arXiv 1910.00932."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from matinee.models.config import Inflate
from matinee.recipes.tsm import tsm_kinetics
from matinee.training.config import TrainConfig


def i3d_333_kinetics(data: str, out: str) -> TrainConfig:
    """I3D ResNet-50 with 3×3×3 kernels on Kinetics: 8 frames, stride 8.

    Data, schedule and views are those of `tsm_kinetics`, which took them from I3D's (Non-local
    Networks), so that the networks alone differ. Published I3Ds also exist for 32 frames; every
    second block is inflated with --model.temporal.every 2.

    Source: Non-local, arXiv 1711.07971, §4; I3D 3×3×3 of arXiv 1910.00932; arXiv 1705.07750.
    """
    return _inflated(data, out, "3x3x3")


def i3d_311_kinetics(data: str, out: str) -> TrainConfig:
    """I3D ResNet-50 with 3×1×1 kernels on Kinetics: 8 frames, stride 8.

    As `i3d_333_kinetics`; the first 1×1 convolution of each block is inflated.

    Source: Non-local, arXiv 1711.07971, §4; I3D 3×1×1 of arXiv 1910.00932.
    """
    return _inflated(data, out, "3x1x1")


def _inflated(data: str, out: str, kernel: Literal["3x3x3", "3x1x1"]) -> TrainConfig:
    config = tsm_kinetics(data, out)
    return replace(config, model=replace(config.model, temporal=Inflate(kernel=kernel)))
