"""AVION: CLIP with a temporal embedding, its fast layers, and its VideoMAE.

With `use_fast_conv1` the patch kernel is a matrix [D, 3·p·p]; with flash attention the vision
tower's layers are called `attn.Wqkv`, `mlp.fc1`, `mlp.fc2` (and `attn.out_proj`, in its VideoMAE
too). The text tower lies below `textual.`. The activation is GELU, whatever CLIP it started from.

Source: AVION, arXiv 2309.16669; the repository zhaoyue-zephyrus/AVION.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from matinee.models.weights.layouts.base import Entry, Layout, Traits, rename
from matinee.models.weights.layouts.clip import TEXT, vit_entry

_FAST = [(r"\.attn\.Wqkv\.", ".attn.in_proj_")]

_OWN = (
    "visual.temporal_embedding",
    "visual.image_projection",
    "textual.token_embedding.weight",
    "fc_cls.weight",
)


def patch_kernel(matrix: Tensor, tubelets: Sequence[int]) -> Tensor:
    """[D, 3·t·p·p] as a convolution's kernel [D, 3, p, p], or [D, 3, t, p, p] for t > 1.

    Of `tubelets`, t is the first that leaves a square patch; without one the matrix stays.
    """
    for tubelet in tubelets:
        side = math.isqrt(matrix.shape[1] // (3 * tubelet))
        if 3 * tubelet * side * side == matrix.shape[1]:
            kernel = matrix.reshape(-1, 3, tubelet, side, side)
            return kernel if tubelet > 1 else kernel.squeeze(2)
    return matrix


def _recognises(state: Mapping[str, Tensor]) -> bool:
    return "visual.class_embedding" in state and any(key in state for key in _OWN)


def _entries(state: Mapping[str, Tensor], known: Sequence[str]) -> Iterator[Entry]:
    for key, value in state.items():
        text = key.removeprefix("textual.")
        if key == "visual.temporal_embedding":
            yield "temporal_embed", value.reshape(1, *value.shape), key
        elif key in ("visual.image_projection", "image_projection"):
            yield "video_projection", value, key
        elif key == "visual.conv1.weight" and value.ndim == 2:
            yield "backbone.patch_embed.proj.weight", patch_kernel(value, (1,)), key
        elif key.startswith("visual."):
            yield *vit_entry(rename(key.removeprefix("visual."), _FAST), value), key
        elif text == "text_projection":
            yield text, value, key
        elif key.startswith("textual.") and text.startswith(TEXT):
            yield f"text.{text}", value, key
        elif key.startswith("fc_cls."):
            yield key.replace("fc_cls", "classifier"), value, key
        else:
            yield key, value, key


AVION = Layout(
    "AVION", _recognises, _entries, lambda state: Traits(activation="GELU", one_class_token=True)
)
