"""Tensors of a file beside those of a network: what fits, what is made to fit, what is left over.

A plan only: no network is changed here, so that what is refused leaves it as it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from matinee.errors import ConfigError
from matinee.models.inflate import Init, inflate_kernel
from matinee.models.patches import inflate
from matinee.models.positions import interpolate_space, interpolate_time
from matinee.models.weights.detect import Weights
from matinee.models.weights.layouts import is_head, part
from matinee.models.weights.names import rename_head

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

POSITIONS, TIME = "backbone.pos_embed", "temporal_embed"
KERNEL = "backbone.patch_embed.proj.weight"


@dataclass(frozen=True)
class Grid:
    """Of the ViT's patches: rows and columns, and class and register tokens with a position."""

    size: tuple[int, int]
    prefix: int


@dataclass
class Plan:
    """What becomes of each tensor, by canonical name; `unexpected` and `aside` by the file's."""

    values: dict[str, Tensor] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    changed: list[tuple[str, str]] = field(default_factory=list)
    share: float = 0.0


def plan(
    weights: Weights,
    targets: Mapping[str, Tensor],
    *,
    heads: Sequence[str] = (),
    grid: Grid | None = None,
) -> Plan:
    """Compare a file with a network.

    Args:
        targets: canonical name to a tensor of the network.
        heads: what timm calls the network's classifiers.
        grid: of the network's patches, if it is a ViT with learned positions.

    Raises:
        ConfigError: a tensor of another shape, of no usable type, or with values that are not
            finite. With the key and both shapes.
    """
    found = Plan()
    parts = {part(name) for name, target in targets.items() if target.is_floating_point()}
    matched = foreign = 0
    for canonical, value in weights.tensors.items():
        key, name = weights.keys[canonical], rename_head(canonical, list(heads))
        if name not in targets:
            if part(name) not in parts:
                found.aside.append(key)
            elif not name.endswith("num_batches_tracked"):
                found.unexpected.append(key)
                counts = value.is_floating_point() and not is_head(name)
                foreign += value.numel() if counts else 0
            continue
        target = targets[name]
        if not target.is_floating_point():
            if value.dtype == target.dtype and value.shape == target.shape:
                found.values[name] = value
            continue
        _check_numbers(weights, key, value)
        fitted, why = _fit(value, target, name, grid)
        if fitted is None:
            if not is_head(name):
                raise ConfigError(
                    f"{weights.path} is for another network: {key} is {list(value.shape)} there, "
                    f"{list(target.shape)} here"
                )
            found.changed.append((name, f"new: {list(value.shape)} there"))
            continue
        if why:
            found.changed.append((name, why))
        found.values[name] = fitted
        matched += 0 if is_head(name) else target.numel()
    own = 0
    for name, target in targets.items():
        if not target.is_floating_point() or is_head(name):
            continue
        own += target.numel()
        if name in found.values:
            continue
        if name == TIME:
            found.changed.append((name, "none in the file: as it was initialised"))
            own -= target.numel()
        else:
            found.missing.append(name)
    found.share = matched / max(own + foreign, 1)
    return found


def _fit(value: Tensor, target: Tensor, name: str, grid: Grid | None) -> tuple[Tensor | None, str]:
    """The tensor in the network's shape and what was done to it; None if it cannot be."""
    there, here = tuple(value.shape), tuple(target.shape)
    if there == here:
        return value, ""
    if name == "logit_scale" and value.numel() == 1:
        return value.reshape(here), ""
    same_ends = value.ndim == target.ndim == 3 and there[::2] == here[::2] and there[1] > 0
    if name == TIME and same_ends:
        return interpolate_time(value.float(), here[1]), f"{there[1]} → {here[1]} frames"
    if name == POSITIONS and same_ends and grid is not None:
        try:
            space = interpolate_space(value.float(), grid.size, grid.prefix)
        except ConfigError:
            return None, ""
        side = round((there[1] - grid.prefix) ** 0.5)
        return space, f"{side}×{side} → {grid.size[0]}×{grid.size[1]} patches"
    if value.ndim != 4 or len(here) != 5 or there != here[:2] + here[3:]:
        return None, ""
    if name == KERNEL:
        return inflate(value, here[2]), f"over {here[2]} frames, 1/{here[2]} in each"
    # An inflated convolution, not yet trained: its kernel shows how it was spread.
    init: Init = "center" if not target[:, :, 0].any() else "average"
    return inflate_kernel(value, init), f"over {here[2]} frames ({init})"


def _check_numbers(weights: Weights, key: str, value: Tensor) -> None:
    if value.dtype not in _FLOATS:
        kind = str(value.dtype).removeprefix("torch.")
        raise ConfigError(f"{weights.path}: {key} is {kind}; weights must be floating point")
    if not math.isfinite(value.sum(dtype=torch.float64).item()):
        raise ConfigError(f"{weights.path}: {key} holds values that are not finite (NaN or ∞)")


def grid_of(vit: Any) -> Grid | None:
    """Of a timm network; None if it has no learned positions on a grid of patches."""
    if getattr(vit, "pos_embed", None) is None or not hasattr(vit, "patch_embed"):
        return None
    prefix = 0 if getattr(vit, "no_embed_class", False) else getattr(vit, "num_prefix_tokens", 0)
    return Grid(vit.patch_embed.grid_size, prefix)
