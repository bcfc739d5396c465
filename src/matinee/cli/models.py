"""`matinee models`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
import tyro

from matinee.cli.common import counting, err, out, parse, table, write_json
from matinee.errors import ConfigError, first_line
from matinee.extras import require
from matinee.models.build import build_video_model
from matinee.models.config import Frames, Inflate, Joint, ModelConfig, Shift, Temporal
from matinee.models.measure import ModelCost, model_cost

COMMON = (
    "resnet18",
    "resnet50",
    "resnext50_32x4d",
    "mobilenetv2_100",
    "efficientnet_b0",
    "vit_small_patch16_224",
    "vit_base_patch16_224",
    "vit_large_patch14_clip_224",
)
WAYS: dict[str, Temporal] = {
    "frames": Frames(),
    "shift": Shift(),
    "inflate 3x3x3": Inflate(kernel="3x3x3"),
    "inflate 3x1x1": Inflate(kernel="3x1x1"),
    "joint": Joint(),
}
MOST = 20  # networks a pattern may list


@dataclass(frozen=True)
class ModelsCommand:
    """Which networks there are, how each becomes a video model, and what that costs."""

    pattern: Annotated[str | None, tyro.conf.Positional] = None
    """Names of timm's, * for any characters ('convnext*'); without it, common networks."""
    frames: int = 8
    """Frames of a clip."""
    size: int = 224
    """Height and width in pixels."""
    classes: int = 400
    """Outputs of the classifier."""
    json: str | None = None
    """Write the numbers to this file; - for standard output."""

    def __post_init__(self) -> None:
        for name in ("frames", "size", "classes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} {getattr(self, name)}: at least 1")


@dataclass(frozen=True)
class Row:
    """One network made a video model in one way, or the reason why that cannot be."""

    network: str
    way: str
    cost: ModelCost | None
    features: int = 0
    """Width of what `embed` gives."""
    reason: str = ""


def main(args: Sequence[str]) -> int:
    command = parse(ModelsCommand, args, "models")
    matching = list(COMMON) if command.pattern is None else find(command.pattern)
    names = matching[:MOST]
    rows = []
    with counting("networks") as step:
        for done, name in enumerate(names, 1):
            rows += [measure(name, way, command) for way in WAYS]
            step(done, len(names), name)
    if command.json != "-":
        _show(command, rows)
    console = err if command.json == "-" else out
    if len(matching) > MOST:
        console.print(
            f"{MOST} of the {len(matching)} networks that match {command.pattern!r}: a narrower "
            "pattern shows the others"
        )
    write_json(command.json, _facts(command, rows, len(matching)))
    return 0


def find(pattern: str) -> list[str]:
    """Networks of timm of that name or pattern.

    Raises:
        ConfigError: there is none.
        MissingExtra: timm is not installed.
    """
    timm = require("timm", "train")
    names: list[str] = timm.list_models(pattern)
    if names:
        return names
    if timm.is_model(pattern):  # with a tag of weights: resnet50.a1_in1k
        return [pattern]
    stem = pattern.strip("*")
    near = (timm.list_models(f"{stem}*") or timm.list_models(f"*{stem}*"))[:5]
    hint = f"; did you mean {', '.join(near)}?" if near else ": try one such as 'resnet*'"
    raise ConfigError(f"timm has no model that matches {pattern!r}{hint}")


def measure(name: str, way: str, command: ModelsCommand) -> Row:
    """Cost of a network made a video model in one of the `WAYS`, without its memory or weights."""
    config = ModelConfig(backbone=name, temporal=WAYS[way], dropout=0.0)
    try:
        with torch.device("meta"):
            model, _, _ = build_video_model(
                config, num_classes=command.classes, frames=command.frames, size=command.size
            )
        cost = model_cost(model, command.size)
    except ConfigError as error:
        return Row(name, way, None, reason=str(error))
    except (AssertionError, RuntimeError, ValueError) as error:
        # Each of timm's networks has its own way of refusing a size that does not suit it.
        reason = f"not with pictures of {command.size}²: {first_line(error)}"
        return Row(name, way, None, reason=reason)
    return Row(name, way, cost, model.num_features)


def _facts(command: ModelsCommand, rows: list[Row], matching: int) -> dict[str, Any]:
    return {
        "frames": command.frames,
        "size": command.size,
        "classes": command.classes,
        "networks_matching": matching,
        "models": [
            {
                "network": row.network,
                **_way(row.way),
                "parameters": row.cost.parameters,
                "gmac": row.cost.gmac,
                "gflops": row.cost.gflops,
                "features": row.features,
            }
            for row in rows
            if row.cost is not None
        ],
        "impossible": [
            {"network": row.network, **_way(row.way), "reason": row.reason}
            for row in rows
            if row.cost is None
        ],
    }


def _way(way: str) -> dict[str, Any]:
    return {"temporal": WAYS[way].kind, **asdict(WAYS[way])}


def _show(command: ModelsCommand, rows: list[Row]) -> None:
    possible = [(row, row.cost) for row in rows if row.cost is not None]
    columns = ["network", "made video by", "frames", "M params", "GMAC", "GFLOPs"]
    if possible:
        table(
            columns,
            [
                [
                    row.network,
                    row.way,
                    command.frames,
                    cost.parameters / 1e6,
                    cost.gmac,
                    cost.gflops,
                ]
                for row, cost in possible
            ],
        )
        out.print(
            f"\nForward pass of a clip of {command.frames} × {command.size}², {command.classes} "
            "classes. GFLOPs = 2 × GMAC; papers often print GMAC under the name of GFLOPs.\n"
            "frames: each alone (TSN). shift: TSM. inflate: I3D, every block. joint: ViT with "
            "attention over all frames."
        )
    without = {row.network for row in rows} - {row.network for row, _ in possible}
    for row in rows:
        if row.network in without and row.way == next(iter(WAYS)):
            out.print(f"{row.network}: {row.reason}")
    if command.pattern is None:
        out.print("Any other network of timm: matinee models 'convnext*'")
