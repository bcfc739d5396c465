"""timm's image networks; torchvision's ResNets have the same names.

A file in the layout of efficientnet_pytorch (`_conv_stem.weight`, `_blocks.0._bn1.weight`, …) is
taken too: both projects register the same tensors in the same order, so they pair one to one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from matinee.models.weights.layouts.base import Entry, Layout

# A weight near the input that networks of timm have one of.
_FIRST = (
    "conv1.weight",
    "conv1.0.weight",
    "conv_stem.weight",
    "_conv_stem.weight",
    "patch_embed.proj.weight",
    "stem.conv.weight",
    "stem.conv1.weight",
    "stem.0.weight",
)


def _recognises(state: Mapping[str, Tensor]) -> bool:
    return any(key in state for key in _FIRST)


def _entries(state: Mapping[str, Tensor], known: Sequence[str]) -> Iterator[Entry]:
    if "_conv_stem.weight" not in state:
        for key, value in state.items():
            yield f"backbone.{key}", value, key
        return
    headless = [key for key in state if not key.startswith("_fc.")]
    keys = list(state) if len(state) == len(known) else headless
    names = dict(zip(keys, known, strict=True)) if len(keys) == len(known) else {}
    for key, value in state.items():
        yield names.get(key, key.replace("_fc.", "classifier.")), value, key


TIMM = Layout("timm", _recognises, _entries)
