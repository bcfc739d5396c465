"""What a network's tensors are called in canonical names."""

from __future__ import annotations

from typing import Any

from torch import nn

from matinee.models.non_local import BlockWithNonLocal
from matinee.models.shift import ShiftedBlock, ShiftedConv

_WRAPPERS = ((ShiftedConv, "conv"), (ShiftedBlock, "block"), (BlockWithNonLocal, "block"))


def canonical_names(model: nn.Module) -> dict[str, str]:
    """Canonical name to own, of all a network's tensors and in its order.

    `model` is a video network, a dual encoder, a masked autoencoder or a bare timm network. See
    Note [Canonical names] in layouts/base.py.
    """
    own = list(model.state_dict())
    wrapped = [
        (f"{name}.", f"{name}.{inner}.")
        for name, module in model.named_modules()
        for kind, inner in _WRAPPERS
        if isinstance(module, kind)
    ]
    bare = not any(hasattr(model, name) for name in ("backbone", "encoder", "video"))
    heads = classifiers(image_network(model))
    return {_canonical(key, wrapped, bare, heads): key for key in own}


def image_network(model: nn.Module) -> Any:
    """The timm network within a model (or the model itself)."""
    for name in ("video", "backbone", "encoder"):
        model = getattr(model, name, model)
    return model


def classifiers(network: Any) -> list[str]:
    """What timm calls a network's classifier; it can have several."""
    config = getattr(network, "pretrained_cfg", None) or {}
    names = config.get("classifier") or ()
    return [names] if isinstance(names, str) else list(names)


def _canonical(key: str, wrapped: list[tuple[str, str]], bare: bool, heads: list[str]) -> str:
    for outer, inner in reversed(wrapped):  # the innermost first, while its path is still whole
        if key.startswith(inner):
            key = outer + key.removeprefix(inner)
    key = f"backbone.{key}" if bare else key.removeprefix("video.")
    if key.startswith("encoder."):
        key = f"backbone.{key.removeprefix('encoder.')}"
    return rename_head(key, heads)


def rename_head(name: str, heads: list[str]) -> str:
    """`backbone.fc.weight` as `classifier.weight`, if `fc` is a classifier's name."""
    for i, head in enumerate(heads):
        if name.startswith(f"backbone.{head}."):
            return name.replace(f"backbone.{head}.", f"classifier{i or ''}.", 1)
    return name
