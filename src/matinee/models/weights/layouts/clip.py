"""CLIP with a ViT: OpenAI's files and open_clip's.

The same names in both; open_clip can have the text tower below `text.` and a timm network below
`visual.trunk.`. OpenAI's state dicts are float16 and carry three integers that are no weights.

Source: CLIP, arXiv 2103.00020; the repositories openai/CLIP and mlfoundations/open_clip.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from matinee.models.weights.layouts.base import Entry, Layout, Traits, rename

_SETTINGS = ("input_resolution", "context_length", "vocab_size")  # of OpenAI's archives

_VIT = [
    (r"^transformer\.resblocks\.", "blocks."),
    (r"^conv1\.", "patch_embed.proj."),
    (r"^class_embedding$", "cls_token"),
    (r"^positional_embedding$", "pos_embed"),
    (r"^ln_pre\.", "norm_pre."),
    (r"^ln_post\.", "norm."),
    (r"\.ln_(\d)\.", r".norm\1."),
    (r"\.ls_(\d)\.", r".ls\1."),
    (r"\.attn\.in_proj_", ".attn.qkv."),
    (r"\.attn\.out_proj\.", ".attn.proj."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
]

UNTOLD = "the file does not say whether it was trained with GELU or QuickGELU"

TEXT = ("token_embedding.", "positional_embedding", "transformer.resblocks.", "ln_final.")
"""How the names of CLIP's text transformer begin."""


def vit_entry(key: str, value: Tensor) -> tuple[str, Tensor]:
    """A key of CLIP's vision transformer, without `visual.`, as timm's, and the tensor so."""
    name = rename(key, _VIT)
    if name in ("cls_token", "pos_embed"):
        value = value.reshape(1, -1, value.shape[-1])
    return f"backbone.{name}", value


def _recognises(state: Mapping[str, Tensor]) -> bool:
    return "visual.class_embedding" in state or any(k.startswith("visual.trunk.") for k in state)


def _entries(state: Mapping[str, Tensor], known: Sequence[str]) -> Iterator[Entry]:
    for key, value in state.items():
        text = key.removeprefix("text.")
        if key in _SETTINGS:
            continue
        if key.startswith("visual.trunk."):
            yield f"backbone.{key.removeprefix('visual.trunk.')}", value, key
        elif key == "visual.head.proj.weight":
            yield "video_projection", value.mT, key
        elif key == "visual.proj":
            yield "video_projection", value, key
        elif key.startswith("visual."):
            yield *vit_entry(key.removeprefix("visual."), value), key
        elif text.startswith(TEXT):
            yield f"text.{text}", value, key
        elif text == "text_projection":
            yield text, value, key
        else:
            yield key, value, key


def _traits(state: Mapping[str, Tensor]) -> Traits:
    """OpenAI trained with QuickGELU, and its archives carry its settings; other files do not tell,
    half precision included: open_clip trains and saves in it too.
    """
    openai = all(name in state for name in _SETTINGS)
    return Traits(activation="QuickGELU" if openai else None)


CLIP = Layout("CLIP", _recognises, _entries, _traits)
