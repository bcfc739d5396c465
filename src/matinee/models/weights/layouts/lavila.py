"""LaViLa: CLIP whose vision tower is a TimeSformer, with attention over time in every block.

Joint attention has no place for that attention (`timeattn`, its norm `norm3`): those tensors are
reported, and the rest is another network than LaViLa's. The text tower has CLIP's names without a
prefix; variants with a BERT have it below `textual.`.

Source: LaViLa, arXiv 2212.04501; the repository facebookresearch/LaViLa.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from matinee.models.weights.layouts.base import Entry, Layout, Traits
from matinee.models.weights.layouts.clip import TEXT


def _recognises(state: Mapping[str, Tensor]) -> bool:
    return "visual.temporal_embed" in state or "visual.blocks.0.timeattn.qkv.weight" in state


def _entries(state: Mapping[str, Tensor], known: Sequence[str]) -> Iterator[Entry]:
    for key, value in state.items():
        if key == "visual.temporal_embed":
            yield "temporal_embed", value, key
        elif key.startswith("visual."):
            name = key.removeprefix("visual.").replace("ln_pre.", "norm_pre.")
            yield f"backbone.{name}", value, key
        elif key == "image_projection":
            yield "video_projection", value, key
        elif key.startswith("textual."):
            yield key.replace("textual.", "text.", 1), value, key
        elif key.startswith(TEXT):
            yield f"text.{key}", value, key
        elif key.startswith("fc_cls."):
            yield key.replace("fc_cls", "classifier"), value, key
        else:
            yield key, value, key


LAVILA = Layout(
    "LaViLa",
    _recognises,
    _entries,
    lambda state: Traits(
        # Those that started from CLIP have its first norm and activation; EgoVLP's have neither.
        activation="QuickGELU" if "visual.ln_pre.weight" in state else "GELU",
        one_class_token=True,
        lost="its attention over time (timeattn, norm3) has no place in joint attention",
    ),
)
