"""Clips a second of video networks in training and inference, with what a clip costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from matinee.errors import ConfigError
from matinee.measure.arms import Spread, Turns, take_turns
from matinee.measure.bench.networks import (
    CLASSES,
    NAMES,
    Clips,
    TrainingStep,
    build,
    gradient_bytes,
    inference_step,
    place,
)
from matinee.measure.draw.figures import Bars, Series
from matinee.measure.result import Part, Result, Table
from matinee.models.measure import ModelCost, model_cost
from matinee.training.precision import pick_device

PRECISIONS = ("fp32", "bf16")
MODES = {"train": "training", "infer": "inference"}
BASE = "tsm"
PUBLISHED = {
    "tsm_over_3d_networks": [1.6, 2.9],
    "what": "TSM trains 1.6x and 2.9x faster than 3-D video networks, on the GPUs of Summit",
    "source": "Training Kinetics in 15 Minutes, arXiv 1910.00932, abstract",
}


@dataclass(frozen=True)
class Options:
    """Clips a second of video networks, from scratch, on clips of noise that stay in memory: no
    decoding, no augmentation. A training step is forward, cross-entropy of 400 classes, backward
    and SGD with momentum. Every network, precision and mode takes turns of one step.
    """

    out: Path = Path("bench/models")
    """Folder for models.json, plots and page."""
    networks: tuple[str, ...] = ("tsn", "tsm", "i3d_333", "i3d_311", "vit_s")
    """Of tsn, tsm, i3d_333, i3d_311 (ResNet-50), vit_s, vit_b (joint attention), or BACKBONE:WAY
    with a way of frames, shift, 3x3x3, 3x1x1, joint: resnet18:shift."""
    precision: tuple[str, ...] = PRECISIONS
    """fp32, bf16 (autocast), or both."""
    frames: int = 8
    """Frames of a clip."""
    size: int | None = None
    """Height and width in pixels; papers use 224. Default: 64."""
    batch: int = 1
    """Clips of a step."""
    rounds: int = 5
    """Steps of each arm that count, after one that warms up."""
    device: str = "auto"
    """auto, cpu or cuda."""
    full: bool = False
    """The size that papers print: 224², at least 12 rounds."""

    def __post_init__(self) -> None:
        if not self.networks or len(set(self.networks)) < len(self.networks):
            raise ConfigError("--networks: different names, one at least")
        if not self.precision or not set(self.precision) <= set(PRECISIONS):
            raise ConfigError(f"--precision {' '.join(self.precision)}: fp32, bf16 or both")
        if self.rounds < 1:
            raise ConfigError(f"--rounds {self.rounds}: at least 1")
        if self.full and self.size is not None:
            raise ConfigError(f"--full takes 224², and --size {self.size} another: choose one")
        _ = self.clips

    @property
    def clips(self) -> Clips:
        small = 64 if self.size is None else self.size
        return Clips(self.batch, self.frames, 224 if self.full else small)


def measure(options: Options, *, on_step: Callable[[int, int, str], None]) -> Result:
    """Build the networks and let them take turns.

    Raises:
        ConfigError: an unknown network, or clips that it cannot take.
    """
    device = pick_device(options.device)
    clips, rounds = options.clips, max(options.rounds, 12) if options.full else options.rounds
    costs: dict[str, ModelCost] = {}
    gradients: dict[str, int] = {}
    arms: dict[str, Callable[[], float]] = {}
    for number, name in enumerate(options.networks):
        on_step(number, len(options.networks), f"building {name}")
        model = build(name, frames=clips.frames, size=clips.size)
        costs[name], gradients[name] = model_cost(model, clips.size), gradient_bytes(model)
        place(model, device)
        for precision in options.precision:
            # Both kinds of step share the weights: what differs is what is measured.
            step = TrainingStep(model, clips, device, precision=precision)
            arms[f"train {precision} {name}"] = step
            arms[f"infer {precision} {name}"] = inference_step(
                model, clips, device, precision=precision
            )
    turns = take_turns(arms, rounds, on_turn=lambda done, all_: on_step(done, all_, "steps"))
    found = _Found(options, clips, device, rounds, costs, gradients, turns)
    return _result(found)


@dataclass(frozen=True)
class _Found:
    options: Options
    clips: Clips
    device: torch.device
    rounds: int
    costs: dict[str, ModelCost]
    gradients: dict[str, int]
    turns: Turns

    def speed(self, mode: str, precision: str, name: str) -> Spread:
        """Clips a second."""
        seconds = self.turns.values[f"{mode} {precision} {name}"]
        return Spread.of([self.clips.batch / s for s in seconds])

    def base(self) -> str:
        return BASE if BASE in self.costs else next(iter(self.costs))

    def faster(self, mode: str, precision: str, name: str) -> Spread:
        """How many times as fast as a network the base is."""
        return self.turns.ratio(f"{mode} {precision} {name}", f"{mode} {precision} {self.base()}")


def _result(found: _Found) -> Result:
    on = torch.cuda.get_device_name(found.device) if found.device.type == "cuda" else (
        f"{torch.get_num_threads()} CPU threads"
    )  # fmt: skip
    lead = (
        f"Steps of {found.clips}, medians of {found.rounds} rounds on {on}; in brackets quartiles."
    )
    parts = [
        Part("networks", "What a clip costs", "", [_cost_table(found)]),
        *(_speed_part(found, mode) for mode in MODES),
    ]
    return Result("models", "Speed of video networks", lead, parts, _data(found, on))


def _cost_table(found: _Found) -> Table:
    rows = [
        [
            name, NAMES.get(name, name), f"{cost.parameters / 1e6:.1f} M", f"{cost.gmac:.2f}",
            f"{cost.gflops:.2f}", f"{found.gradients[name] / 1e6:.1f} MB",
        ]
        for name, cost in found.costs.items()
    ]  # fmt: skip
    columns = ["network", "made of", "parameters", "GMAC", "GFLOPs", "gradients"]
    note = (
        "Forward pass of one clip: multiply-adds (GMAC, often printed as FLOPs) and floating point "
        "operations, two of each. Gradients: float32 bytes that ranks exchange each step."
    )
    return Table(columns, rows, "", note)


def _speed_part(found: _Found, mode: str) -> Part:
    base, precisions = found.base(), found.options.precision
    columns = ["network", "precision", "clips/s", "TFLOP/s", f"{base} is faster by"]
    columns += ["bf16 over fp32"] * (len(precisions) > 1)
    rows = []
    for name, cost in found.costs.items():
        for p in precisions:
            speed = found.speed(mode, p, name)
            rate = speed.median * cost.flops * (3 if mode == "train" else 1) / 1e12
            row = [name, p, str(speed), f"{rate:.3g}"]
            row.append("" if name == base else str(found.faster(mode, p, name)))
            if len(precisions) > 1:
                ratio = found.turns.ratio(f"{mode} fp32 {name}", f"{mode} bf16 {name}")
                row.append(str(ratio) if p == "bf16" else "")
            rows.append(row)
    note = "TFLOP/s: operations counted above"
    note += ", three times for forward and backward." if mode == "train" else "."
    if mode == "train" and base == BASE:
        note += f" Published: {PUBLISHED['what']} ({PUBLISHED['source']})."
    return Part(
        MODES[mode], f"{MODES[mode].capitalize()}", "", [Table(columns, rows, "", note)],
        {"speed": _bars(found, mode)},
    )  # fmt: skip


def _bars(found: _Found, mode: str) -> Bars:
    names = list(found.costs)
    series = []
    for p in found.options.precision:
        speeds = [found.speed(mode, p, name) for name in names]
        series.append(
            Series(
                p, [], [s.median for s in speeds], [s.low for s in speeds],
                [s.high for s in speeds],
            )
        )  # fmt: skip
    about = f"Clips a second of {MODES[mode]} by network and precision; lines are quartiles."
    return Bars(about, names, "clips a second", series)


def _data(found: _Found, on: str) -> dict[str, Any]:
    return {
        "clip": {"frames": found.clips.frames, "size": found.clips.size, "classes": CLASSES},
        "step": {"batch": found.clips.batch, "rounds": found.rounds},
        "device": found.device.type, "on": on, "base": found.base(),
        "cost_of_a_clip": {
            name: {
                **asdict(cost), "gmac": cost.gmac, "gflops": cost.gflops,
                "gradient_bytes": found.gradients[name],
            }
            for name, cost in found.costs.items()
        },
        "measured": [
            {
                "network": name, "mode": mode, "precision": p,
                "clips_per_s": found.speed(mode, p, name).to_dict(),
                "base_is_faster_by": found.faster(mode, p, name).to_dict(),
                "seconds": found.turns.values[f"{mode} {p} {name}"],
            }
            for mode in MODES for p in found.options.precision for name in found.costs
        ],
        "published": PUBLISHED,
    }  # fmt: skip
