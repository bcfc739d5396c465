"""Device and number format of a run, chosen with a reason."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from matinee.errors import ConfigError

Precision = Literal["fp32", "bf16", "fp16"]
"""Of forward and backward passes; weights are fp32."""


def pick_device(wanted: str) -> torch.device:
    """The device named, or for "auto" a GPU if there is one.

    Raises:
        ConfigError: not a device, or not here.
    """
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ConfigError(f"--run.device {wanted!r}: auto, cpu or cuda[:n]") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--run.device {wanted}: auto, cpu or cuda[:n]")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--run.device {wanted}: torch sees no GPU here")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"--run.device {wanted}: there are {torch.cuda.device_count()} GPUs")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def pick_precision(
    wanted: Literal["auto"] | Precision, device: torch.device
) -> tuple[Precision, str]:
    """The number format, and why."""
    if wanted != "auto":
        return wanted, "as asked"
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported():
            return "bf16", "the GPU has bf16 units"
        return "fp32", "the GPU has no bf16 units"
    return "fp32", "on a CPU bf16 speeds up some networks and slows others: try it"


_FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context that forward passes run in."""
    if precision in _FORMATS:
        return torch.autocast(device.type, _FORMATS[precision])
    return nullcontext()


def allow_tf32(allowed: bool) -> None:
    """Whether NVIDIA GPUs may multiply with 10 bits of mantissa where fp32 is asked for."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
