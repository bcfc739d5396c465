"""What a clip costs each network, and how many a second it trains here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from matinee.measure.arms import Spread, Turns, take_turns
from matinee.measure.bench.networks import Clips, TrainingStep, build, gradient_bytes, place
from matinee.measure.draw.figures import Bars, Series
from matinee.measure.reproduce.kinetics15.options import Scale
from matinee.measure.reproduce.kinetics15.published import SPEED, TARGETS
from matinee.measure.result import Part, Table
from matinee.models.measure import ModelCost, model_cost

FRAMES = 8
NETWORKS = {"tsm": "TSM", "i3d_333": "I3D 3×3×3", "i3d_311": "I3D 3×1×1", "tsn": "TSN (no shift)"}
PRECISIONS = ("fp32", "bf16")
LAYOUTS = ("channels last", "contiguous")
_TRIES = 3
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Speeds:
    """What was measured; arms are named "NETWORK PRECISION"."""

    clips: Clips
    costs: dict[str, ModelCost]
    gradients: dict[str, int]
    layouts: dict[str, str]
    turns: Turns

    def rate(self, network: str, precision: str) -> Spread:
        """Clips a second."""
        seconds = self.turns.values[f"{network} {precision}"]
        return Spread.of([self.clips.batch / s for s in seconds])

    def tsm_faster(self, network: str, precision: str) -> Spread:
        """How many times as fast as a network TSM is."""
        return self.turns.ratio(f"{network} {precision}", f"tsm {precision}")

    def bound(self, network: str, precision: str) -> Spread:
        """The same of TSN: what a shift that costs nothing would reach."""
        return self.turns.ratio(f"{network} {precision}", f"tsn {precision}")


def measure_speed(scale: Scale, tell: Callable[[float, str], None]) -> Speeds:
    """Let all networks take turns of one training step, each in the memory layout that suits it.

    Which one that is was asked first, of the fastest of three steps of each layout in turn, after
    one that warms up; TSN, which TSM is compared with, has TSM's. A first round warms up.
    """
    clips = Clips(scale.batch, FRAMES, scale.size)
    costs: dict[str, ModelCost] = {}
    gradients: dict[str, int] = {}
    layouts: dict[str, str] = {}
    arms: dict[str, Callable[[], float]] = {}
    for number, network in enumerate(NETWORKS):
        tell(0.4 * number / len(NETWORKS), f"{NETWORKS[network]}: which memory layout")
        model = build(network, frames=FRAMES, size=scale.size)
        costs[network] = model_cost(model, scale.size)
        gradients[network] = gradient_bytes(model)
        models = {"contiguous": model, "channels last": place(copy.deepcopy(model), CPU)}
        for precision in PRECISIONS:
            # Both precisions share the weights: what differs is what is measured.
            tried = {
                layout: TrainingStep(models[layout], clips, CPU, precision=precision)
                for layout in LAYOUTS
            }
            arm = f"{network} {precision}"
            layouts[arm] = layouts[f"tsm {precision}"] if network == "tsn" else _faster(tried)
            arms[arm] = tried[layouts[arm]]
    turns = take_turns(
        arms, scale.rounds,
        on_turn=lambda done, all_: tell(0.4 + 0.6 * done / all_, "training steps in turn"),
    )  # fmt: skip
    return Speeds(clips, costs, gradients, layouts, turns)


def _faster(tried: dict[str, TrainingStep]) -> str:
    """The quicker, by its fastest step."""
    turns = take_turns(tried, _TRIES)
    return min(tried, key=lambda layout: min(turns.values[layout]))


def speed_part(found: Speeds) -> tuple[Part, dict[str, Any]]:
    """The part of the page, and its numbers."""
    text = (
        f"One ResNet-50 of 400 classes, three ways to see time, and none (TSN). Training steps of "
        f"{found.clips} on {torch.get_num_threads()} CPU threads, clips of noise in memory; each "
        "network in the memory layout that is faster for it here.\n\n"
        "TSM does TSN's arithmetic, so TSN is the bound of what any shift can reach."
    )
    tables = [_costs(found), *(_rates(found, p) for p in PRECISIONS), _published()]
    return Part("networks", "Three networks", text, tables, {"speed": _bars(found)}), _data(found)


def _costs(found: Speeds) -> Table:
    rows = [
        [
            NETWORKS[name], f"{cost.gflops:.1f}", f"{cost.gmac:.1f}",
            f"{cost.parameters / 1e6:.1f} M", f"{FRAMES}", f"{found.gradients[name] / 1e6:.1f} MB",
        ]
        for name, cost in found.costs.items()
    ]  # fmt: skip
    columns = ["network", "GFLOPs", "GMAC", "parameters", "frames", "gradients"]
    note = (
        "Forward pass of a clip: floating point operations, and multiply-adds, which papers print "
        "as FLOPs. Gradients: float32 bytes that ranks exchange in each step."
    )
    return Table(columns, rows, "What a clip costs", note)


def _rates(found: Speeds, precision: str) -> Table:
    rows = []
    for name, shown in NETWORKS.items():
        row = [shown, found.layouts[f"{name} {precision}"], str(found.rate(name, precision))]
        row.append("" if name == "tsm" else str(found.tsm_faster(name, precision)))
        row.append(str(found.bound(name, precision)) if name in TARGETS else "")
        row.append(f"{TARGETS[name]:.1f}" if name in TARGETS else "")
        rows.append(row)
    columns = ["network", "layout", "clips/s", "TSM is faster by", "bound (TSN is)", "wanted"]
    note = "Medians with quartiles; ratios within a round."
    return Table(columns, rows, f"Clips trained a second, {precision}", note)


def _published() -> Table:
    rows = [[said.what, said.value, said.source] for said in SPEED]
    note = (
        "The published I3Ds see more frames than TSM does, on GPUs; here all see the same 8, so "
        "what is compared is the networks alone."
    )
    return Table(["what", "published", "source"], rows, "What was published", note)


def _bars(found: Speeds) -> Bars:
    series = []
    for precision in PRECISIONS:
        spreads = [found.rate(name, precision) for name in NETWORKS]
        series.append(
            Series(
                precision, [], [s.median for s in spreads], [s.low for s in spreads],
                [s.high for s in spreads],
            )
        )  # fmt: skip
    about = "Clips trained a second by network and precision; lines are quartiles."
    return Bars(about, list(NETWORKS.values()), "clips a second", series)


def _data(found: Speeds) -> dict[str, Any]:
    return {
        "clip": {"frames": FRAMES, "size": found.clips.size, "batch": found.clips.batch},
        "threads": torch.get_num_threads(),
        "networks": {
            name: {
                "parameters": cost.parameters, "gflops": cost.gflops, "gmac": cost.gmac,
                "gradient_bytes": found.gradients[name],
            }
            for name, cost in found.costs.items()
        },
        "measured": [
            {
                "network": name, "precision": p, "layout": found.layouts[f"{name} {p}"],
                "clips_per_s": found.rate(name, p).to_dict(),
                "tsm_is_faster_by": found.tsm_faster(name, p).to_dict(),
                "bound": found.bound(name, p).to_dict(), "wanted": TARGETS.get(name),
                "seconds": found.turns.values[f"{name} {p}"],
            }
            for p in PRECISIONS for name in NETWORKS
        ],
        "published": [vars(said) for said in SPEED],
    }  # fmt: skip
