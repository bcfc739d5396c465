"""From a file to canonical names: which layout it has, and its tensors under their names here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from matinee.errors import ConfigError, first_line
from matinee.models.weights.files import WeightsFile, read_weights
from matinee.models.weights.layouts import LAYOUTS, TIMM, Layout, Traits


@dataclass(frozen=True)
class Weights:
    """A file's tensors under canonical names (Note [Canonical names] in layouts/base.py)."""

    path: Path
    layout: str
    traits: Traits
    tensors: dict[str, Tensor]
    keys: dict[str, str]
    """Canonical name to the file's own."""


def open_weights(path: Path, known: Sequence[str] = ()) -> Weights:
    """Read a file and translate its names.

    Args:
        known: canonical names of the network to load, in its order.

    Raises:
        ConfigError: the file cannot be read, or has no known layout.
    """
    return translate(path, read_weights(path), known)


def translate(path: Path, file: WeightsFile, known: Sequence[str] = ()) -> Weights:
    """A file's tensors under canonical names; see `open_weights`."""
    layout = _detect(path, file.tensors, known)
    tensors: dict[str, Tensor] = {}
    keys: dict[str, str] = {}
    try:
        entries = list(layout.entries(file.tensors, known))
    except (RuntimeError, IndexError, ValueError) as error:  # reshaping what cannot be
        raise ConfigError(
            f"{path} has {layout.name} names, but not its shapes: {first_line(error)}"
        ) from None
    for name, value, key in entries:
        if name in keys:
            raise ConfigError(f"{path}: {keys[name]} and {key} are the same tensor, {name}")
        tensors[name], keys[name] = value, key
    traits = Traits.from_metadata(file.metadata) or layout.traits(file.tensors)
    return Weights(path, file.metadata.get("layout", layout.name), traits, tensors, keys)


def _detect(path: Path, state: dict[str, Tensor], known: Sequence[str]) -> Layout:
    for layout in LAYOUTS:
        if layout.recognises(state):
            return layout
    if not {f"backbone.{key}" for key in state}.isdisjoint(known):
        return TIMM
    names = ", ".join(layout.name for layout in LAYOUTS)
    raise ConfigError(
        f"{path} has names of no known layout ({', '.join(list(state)[:3])}, …); known are "
        f"{names}, of CLIP only networks with a ViT"
    )
