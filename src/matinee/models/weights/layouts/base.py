"""What a layout is: whose names a file has, and what the tensors are called here.

# Note [Canonical names]
Between files and networks stand one set of names:

  backbone.…          the image network (or encoder), with timm's names, without the wrappers that
                      shift and non-local blocks put around convolutions and blocks
  temporal_embed      [1, T', D]
  classifier.…        of the image network, whatever timm calls it there
  text.…              the text transformer, with open_clip's names
  video_projection, text_projection, logit_scale
                      [D, E], [D, E], []
  decoder.…, encoder_to_decoder.weight, mask_token
                      of a masked autoencoder

The first word (but for the temporal embedding, which belongs to the backbone) is the *part*: what a
network may have or lack as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from torch import Tensor

Entry = tuple[str, Tensor, str]
"""Canonical name, tensor, key in the file."""


@dataclass(frozen=True)
class Traits:
    """What a network's weights were trained with and their names do not show."""

    activation: str | None = None
    """Of the ViT: GELU or QuickGELU; None: not known."""
    one_class_token: bool = False
    """A single class token for the whole clip, not one a frame."""
    lost: str | None = None
    """What of this project's networks has no counterpart here."""

    def as_metadata(self) -> dict[str, str]:
        """For a safetensors file."""
        return {"traits": json.dumps(asdict(self))}

    @staticmethod
    def from_metadata(metadata: Mapping[str, str]) -> Traits | None:
        """None without any, or with some that another version wrote."""
        try:
            return Traits(**json.loads(metadata["traits"]))
        except (KeyError, ValueError, TypeError):
            return None


@dataclass(frozen=True)
class Layout:
    """One project's names.

    `entries(state, known)` yields every tensor of a file under its canonical name; tensors without
    one keep their own. `known` are the canonical names of the network to load, in its order, or
    empty.
    """

    name: str
    recognises: Callable[[Mapping[str, Tensor]], bool]
    entries: Callable[[Mapping[str, Tensor], Sequence[str]], Iterator[Entry]]
    traits: Callable[[Mapping[str, Tensor]], Traits] = lambda state: Traits()


def part(name: str) -> str:
    """The part of a network that a canonical name belongs to. See Note [Canonical names]."""
    first = name.split(".", 1)[0]
    if first in ("encoder_to_decoder", "mask_token"):
        return "decoder"
    return "backbone" if first == "temporal_embed" else first


def is_head(name: str) -> bool:
    """Whether a tensor belongs to a task: of another size, it starts anew."""
    return part(name).startswith(("classifier", "video_projection", "text_projection"))


def rename(key: str, rules: Sequence[tuple[str, str]]) -> str:
    """Regular expressions and what replaces them, one after the other."""
    for pattern, new in rules:
        key = re.sub(pattern, new, key)
    return key
