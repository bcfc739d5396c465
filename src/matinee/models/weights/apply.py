"""Load a file of weights into a network, with a report; refuse what does not fit."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import nn

from matinee.errors import ConfigError
from matinee.models.weights.detect import Weights, open_weights
from matinee.models.weights.fit import KERNEL, Plan, grid_of, plan
from matinee.models.weights.layouts import Traits, part
from matinee.models.weights.layouts.clip import CLIP, UNTOLD
from matinee.models.weights.names import canonical_names, classifiers, image_network
from matinee.models.weights.report import ImportReport

MIN_MATCH = 0.9


def load_into(model: nn.Module, path: str | Path, *, min_match: float = MIN_MATCH) -> ImportReport:
    """Load published or own weights into a network, whatever names they have.

    `model` is a video network, a dual encoder, a masked autoencoder or a bare timm network. Image
    weights can be loaded before or after a temporal shift, non-local blocks or inflation; kernels
    are spread over time as the network's own are. Position embeddings of another input size or
    number of frames are interpolated; heads of another size stay new.

    Raises:
        ConfigError: the file cannot be read, is of no known layout, is for another network, or
            `ImportReport.share` is below `min_match`. The network is then as it was.
    """
    check_min_match(min_match)
    path = Path(path)
    names = canonical_names(model)
    weights = open_weights(path, list(names))
    own = model.state_dict()
    network = image_network(model)
    targets = {name: own[key] for name, key in names.items()}
    found = plan(weights, targets, heads=classifiers(network), grid=grid_of(network))
    check(weights, found, targets.keys(), min_match)
    model.load_state_dict({names[k]: v for k, v in found.values.items()}, strict=False)
    heads = [name for name in targets if part(name) == "classifier"]
    loaded = all(name in found.values for name in heads)
    return ImportReport(
        layout=weights.layout,
        matched=[names[name] for name in found.values],
        missing=[names[name] for name in found.missing],
        unexpected=found.unexpected,
        aside=found.aside,
        changed=[(names[name], why) for name, why in found.changed if part(name) != "classifier"],
        notes=_notes(weights, model, network),
        share=found.share,
        classifier=("loaded" if loaded else "new") if heads else "none",
    )


def traits_of(path: str | Path) -> Traits:
    """What the weights of a file were trained with, to build the network so.

    Raises:
        ConfigError: the file cannot be read, or is of no known layout.
    """
    return open_weights(Path(path)).traits


def check_min_match(min_match: float) -> None:
    """Refuse a share that cannot be.

    Raises:
        ConfigError: not in (0, 1].
    """
    if not 0 < min_match <= 1:
        raise ConfigError(f"--min-match {min_match}: above 0, at most 1")


def check(weights: Weights, found: Plan, targets: Collection[str], min_match: float) -> None:
    """Refuse a plan that leaves too much of the network or of the file over.

    Raises:
        ConfigError: with the first keys that do not fit.
    """
    norm = "backbone.norm_pre.weight"
    theirs, ours = norm in weights.tensors, norm in targets
    if KERNEL in weights.tensors and theirs != ours:
        raise ConfigError(
            f"{weights.path} {'has' if theirs else 'lacks'} CLIP's norm before the first block "
            f"(norm_pre) and this network {'has' if ours else 'lacks'} it: choose a backbone "
            f"{'such as vit_base_patch16_clip_224' if theirs else 'without clip in its name'}"
        )
    if found.share >= min_match:
        return
    reason = ""
    if weights.traits.lost and found.unexpected:
        reason = f": {weights.traits.lost}; matinee import with a lower --min-match leaves it out"
    raise ConfigError(
        f"{weights.path} ({weights.layout} names) does not fit: {found.share:.1%} of the weights "
        f"match, {min_match:.0%} are asked for; {len(found.missing)} keys are missing "
        f"({_some(found.missing)}), {len(found.unexpected)} unknown "
        f"({_some(found.unexpected)}){reason}"
    )


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:2]) + (", …" if len(keys) > 2 else "") if keys else "none"


def _notes(weights: Weights, model: Any, network: Any) -> list[str]:
    """What the weights were trained with and the network does otherwise."""
    notes = []
    wanted = weights.traits.activation
    text = getattr(getattr(model, "text", None), "transformer", None)
    for tower, layers in (("vision", network), ("text", text)):
        own = {type(m).__name__ for m in layers.modules()} if layers is not None else set()
        own &= {"GELU", "QuickGELU"}
        if wanted and own and wanted not in own:
            notes.append(f"trained with {wanted}, this network's {tower} tower has {own.pop()}")
        elif not wanted and own and weights.layout == CLIP.name:
            notes.append(f"{UNTOLD}; this network's {tower} tower has {own.pop()}")
    video = getattr(model, "video", model)
    if weights.traits.one_class_token and getattr(video, "class_token", "clip") == "frame":
        notes.append("trained with one class token a clip, this network has one a frame")
    if weights.traits.lost:
        notes.append(weights.traits.lost)
    return notes
