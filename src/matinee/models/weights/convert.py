"""Published weights as a safetensors file in this package's names.

Nothing is interpolated: the file's tensors keep their sizes and types. They are compared with a
timm network of the same shapes, made without memory; the text tower and the decoder, which no timm
network has, are compared block by block with their own first block.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from matinee.errors import ConfigError
from matinee.extras import require
from matinee.models.weights.apply import MIN_MATCH, check, check_min_match
from matinee.models.weights.detect import Weights, translate
from matinee.models.weights.files import digest, read_weights
from matinee.models.weights.fit import KERNEL, POSITIONS, TIME, plan
from matinee.models.weights.layouts import is_head, part
from matinee.models.weights.layouts.clip import CLIP, TEXT, UNTOLD
from matinee.models.weights.names import canonical_names, classifiers, rename_head
from matinee.models.weights.report import ImportReport

# Width, depth, patch: timm's name, without the size of its input.
_PLAIN = {
    (192, 12, 16): "vit_tiny_patch16",
    (384, 12, 16): "vit_small_patch16",
    (384, 12, 32): "vit_small_patch32",
    (768, 12, 16): "vit_base_patch16",
    (768, 12, 32): "vit_base_patch32",
    (1024, 24, 16): "vit_large_patch16",
    (1280, 32, 14): "vit_huge_patch14",
    (1280, 32, 16): "vit_huge_patch16_gap",
    (1408, 40, 14): "vit_giant_patch14",
}
_CLIP = {
    (256, 10, 16): "vit_xsmall_patch16_clip",
    (512, 12, 16): "vit_medium_patch16_clip",
    (512, 12, 32): "vit_medium_patch32_clip",
    (768, 12, 16): "vit_base_patch16_clip",
    (768, 12, 32): "vit_base_patch32_clip",
    (1024, 24, 14): "vit_large_patch14_clip",
    (1280, 32, 14): "vit_huge_patch14_clip",
}
_CNNS = (
    "mobilenetv2_100", "mobilenetv3_large_100", "efficientnet_b0", "efficientnet_b1",
    "efficientnet_b2", "tf_efficientnet_lite0", "resnet18", "resnet34", "resnet50", "resnet101",
    "resnet152", "resnext50_32x4d", "resnext101_32x8d", "wide_resnet50_2",
)  # fmt: skip

_TEXT = tuple(f"text.{name}" for name in TEXT)


@dataclass(frozen=True)
class Converted:
    """`tensors` in own names, ready for a safetensors file with `metadata`."""

    backbone: str
    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    report: ImportReport


def convert_weights(
    path: Path, *, backbone: str | None = None, min_match: float = MIN_MATCH
) -> Converted:
    """Translate a file of published weights.

    Args:
        backbone: the timm network it belongs to; None: the one with these names and shapes, of
            those most used.

    Raises:
        ConfigError: the file cannot be read, or is of no known layout or network; too little of it
            matches.
    """
    check_min_match(min_match)
    file = read_weights(path)
    weights = translate(path, file)
    name = _find(weights) if backbone is None else backbone
    network = _network(name, weights)
    heads = classifiers(network)
    names = canonical_names(network)
    if backbone is not None:
        weights = translate(path, file, list(names))
    own = network.state_dict()
    targets = _targets(weights, {canonical: own[key] for canonical, key in names.items()}, heads)
    found = plan(weights, targets, heads=heads)
    check(weights, found, targets.keys(), min_match)
    own_memory = partial(torch.clone, memory_format=torch.contiguous_format)  # what is tied is not
    tensors = {_own_name(n, heads): own_memory(value) for n, value in found.values.items()}
    classifier = any(part(n) == "classifier" for n in found.values)
    notes = [weights.traits.lost] if weights.traits.lost else []
    if weights.layout == CLIP.name and weights.traits.activation is None:
        notes.append(f"{UNTOLD}; this is {name} (of QuickGELU: --model vit_…_clip_quickgelu_…)")
    report = ImportReport(
        layout=weights.layout,
        matched=list(tensors),
        missing=[_own_name(n, heads) for n in found.missing],
        unexpected=found.unexpected,
        aside=found.aside,
        changed=found.changed,
        notes=notes,
        share=found.share,
        classifier="loaded" if classifier else "none",
    )
    metadata = {
        "format": "pt",
        "layout": weights.layout,
        "backbone": name,
        "source": path.name,
        "sha256": digest(path),
        **weights.traits.as_metadata(),
    }
    return Converted(name, tensors, metadata, report)


def _own_name(canonical: str, heads: list[str]) -> str:
    if part(canonical) == "classifier" and heads:
        return canonical.replace("classifier", f"backbone.{heads[0]}", 1)
    return canonical


def _network(name: str, weights: Weights) -> Any:
    """A timm network without memory, with a class token and a last norm if the file has them."""
    timm = require("timm", "train")
    if not timm.is_model(name):
        near = timm.list_models(f"*{name[:6]}*")[:5]
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ConfigError(f"--model {name}: timm has no such network{hint}")
    settings: dict[str, Any] = {}
    if _is_vit(weights) and "backbone.cls_token" not in weights.tensors:
        settings = {
            "class_token": False,
            "global_pool": "avg",
            "fc_norm": "backbone.norm.weight" not in weights.tensors,
        }
    with torch.device("meta"):
        return timm.create_model(name, num_classes=0, **settings)


def _is_vit(weights: Weights) -> bool:
    return "backbone.blocks.0.attn.qkv.weight" in weights.tensors


def _find(weights: Weights) -> str:
    """The timm network with the file's names and shapes.

    Raises:
        ConfigError: none of those known here.
    """
    alike = (name for name in _CNNS if _likeness(weights, name) > 0.99)
    found = _vit(weights) if _is_vit(weights) else next(alike, None)
    if found is None:
        raise ConfigError(
            f"{weights.path} ({weights.layout} names) is of no network known by its shapes: name "
            "its timm network with --model"
        )
    return found


def _vit(weights: Weights) -> str | None:
    """Of timm's names, rather one with the file's activation and input size."""
    timm = require("timm", "train")
    kernel, place = (weights.tensors.get(name) for name in (KERNEL, POSITIONS))
    if kernel is None or kernel.ndim < 4:
        return None
    width, patch = kernel.shape[0], kernel.shape[-1]
    found = (re.match(r"backbone\.blocks\.(\d+)\.", name) for name in weights.tensors)
    depth = len({match[1] for match in found if match})
    clip = "backbone.norm_pre.weight" in weights.tensors
    stem = (_CLIP if clip else _PLAIN).get((width, depth, patch))
    quick = weights.traits.activation == "QuickGELU"
    side = patch * math.isqrt(place.shape[1]) if place is not None and place.ndim == 3 else 224
    wanted = (
        f"{stem}{act}_{size}"
        for act in (("_quickgelu", "") if quick else ("",))
        for size in (side, 224, 448)
    )
    return next((name for name in wanted if timm.is_model(name)), None)


def _likeness(weights: Weights, name: str) -> float:
    """Numbers in tensors of one name and shape, of all in either, of the image network."""
    own = _network(name, weights)
    state = own.state_dict()
    targets = {canonical: state[key] for canonical, key in canonical_names(own).items()}
    both = either = 0
    for key in weights.tensors.keys() | targets.keys():
        mine, other = weights.tensors.get(key), targets.get(key)
        sizes = [value.numel() for value in (mine, other) if value is not None]
        if part(key) == "backbone":
            either += max(sizes)
            both += sizes[0] if mine is not None and _same_shape(mine, other) else 0
    return both / max(either, 1)


def _same_shape(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.shape == other.shape


def _targets(weights: Weights, targets: dict[str, Tensor], heads: list[str]) -> dict[str, Tensor]:
    """The network's tensors in the file's sizes, with the parts that no timm network has."""
    out = dict(targets)
    if POSITIONS in out and POSITIONS not in weights.tensors and TIME not in weights.tensors:
        del out[POSITIONS]  # a fixed table, which is not stored
    for canonical, value in weights.tensors.items():
        name = rename_head(canonical, heads)
        place = out.get(name)
        if name == POSITIONS and place is not None:
            if value.ndim == 3 and value.shape[::2] == place.shape[::2]:
                out[name] = value
        elif name == KERNEL and place is not None:
            if value.ndim == 5 and value.shape[:2] + value.shape[3:] == place.shape:
                out[name] = value
        elif is_head(name) or name in (TIME, "logit_scale"):
            out[name] = value
        elif name.startswith(_TEXT) or part(name) == "decoder":
            out.update(_like_first_block(name, value, weights.tensors))
    return out


def _like_first_block(name: str, value: Tensor, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a tensor of a text tower or decoder implies: the same one in each of its blocks."""
    found = re.fullmatch(r"(.*(?:resblocks|blocks)\.)(\d+)(\..*)", name)
    if not found:
        return {name: value}
    if found[2] != "0":
        return {}
    places = {
        match[1]
        for other in tensors
        if (match := re.match(rf"{re.escape(found[1])}(\d+)\.", other))
    }
    return {f"{found[1]}{i}{found[3]}": value for i in range(len(places))}
