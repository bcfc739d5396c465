"""VideoMAE V1 and V2, pre-trained (encoder and decoder) and fine-tuned.

The names are the same in both versions. Queries and values have a bias, keys none: `attn.q_bias`,
`attn.v_bias`. Positions are a fixed table and not stored. Before fine-tuning the encoder is called
`encoder.`; AVION's files of it have flash attention's names and a matrix for the tubelets' kernel.

Source: VideoMAE, arXiv 2203.12602; VideoMAE V2, arXiv 2303.16727; the repositories
MCG-NJU/VideoMAE and OpenGVLab/VideoMAEv2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from matinee.models.weights.layouts.avion import patch_kernel
from matinee.models.weights.layouts.base import Entry, Layout, Traits, rename

_RULES = [
    (r"^(?:encoder|backbone)\.", "backbone."),
    (r"^(?=blocks\.|patch_embed\.|norm\.|fc_norm\.|pos_embed$|cls_token$)", "backbone."),
    (r"^head\.", "classifier."),
    (r"\.gamma_(\d)$", r".ls\1.gamma"),
    (r"\.attn\.Wqkv\.", ".attn.qkv."),
    (r"\.attn\.out_proj\.", ".attn.proj."),
]


def _recognises(state: Mapping[str, Tensor]) -> bool:
    return any(key.endswith("blocks.0.attn.q_bias") for key in state) or any(
        key.removeprefix("encoder.") == "blocks.0.attn.Wqkv.weight" for key in state
    )


def _entries(state: Mapping[str, Tensor], known: Sequence[str]) -> Iterator[Entry]:
    for key, value in state.items():
        name = rename(key, _RULES)
        values = f"{key.removesuffix('q_bias')}v_bias"
        if key.endswith(".attn.q_bias") and values in state:
            bias = torch.cat([value, torch.zeros_like(value), state[values]])
            yield name.replace("q_bias", "qkv.bias"), bias, key
        elif key.endswith(".attn.v_bias") and f"{key.removesuffix('v_bias')}q_bias" in state:
            continue
        elif name.endswith("patch_embed.proj.weight") and value.ndim == 2:
            yield name, patch_kernel(value, (2, 1)), key
        else:
            yield name, value, key


VIDEOMAE = Layout("VideoMAE", _recognises, _entries, lambda state: Traits(activation="GELU"))
