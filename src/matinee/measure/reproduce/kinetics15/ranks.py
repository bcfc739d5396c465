"""Real ranks of small networks on this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matinee.measure.bench import scaling
from matinee.measure.draw.figures import Lines, Series
from matinee.measure.reproduce.kinetics15.options import Scale
from matinee.measure.result import Part, Table

SMALL = {"tsm": "resnet14t:shift", "i3d_333": "resnet14t:3x3x3", "i3d_311": "resnet14t:3x1x1"}
SHOWN = {"tsm": "TSM", "i3d_333": "I3D 3×3×3", "i3d_311": "I3D 3×1×1"}
SIZE, FRAMES = 64, 8


def ranks_part(scale: Scale, tell: Callable[[float, str], None]) -> tuple[Part, dict[str, Any]]:
    """Measure each small network on every number of ranks; the part of the page, and its numbers.

    Raises:
        MatineeError: a rank failed.
    """
    measured: dict[str, dict[str, Any]] = {}
    for number, (name, network) in enumerate(SMALL.items()):

        def told(done: int, all_: int, note: str, number: int = number, name: str = name) -> None:
            tell((number + done / max(all_, 1)) / len(SMALL), f"{SHOWN[name]} on ranks: {note}")

        options = scaling.Options(
            ranks=scale.ranks, network=network, frames=FRAMES, size=SIZE, steps=2,
            rounds=scale.turns, device="cpu",
        )  # fmt: skip
        measured[name] = dict(scaling.measure(options, on_step=told).data)
    return _part(measured), measured


def _part(measured: dict[str, dict[str, Any]]) -> Part:
    cores = next(iter(measured.values()))["cores"]
    rows = []
    for name, found in measured.items():
        for point in found["measured"]:
            ranks, rate = point["ranks"], point["clips_per_s"]
            rows.append([
                f"{SHOWN[name]}, {ranks} rank{'s' * (ranks > 1)}",
                f"{found['gradient_bytes'] / 1e6:.1f} MB", f"{rate['median']:.3g}",
                f"{100 * point['efficiency']['median']:.0f} %" if ranks > 1 else "",
                f"{100 * point['efficiency_against_cores']['median']:.0f} %" if ranks > 1 else "",
                f"{100 * point['communication_share']['median']:.0f} %" if ranks > 1 else "",
            ])  # fmt: skip
    columns = [
        "network", "gradients", "clips/s", "efficiency", "against cores", "communication",
    ]  # fmt: skip
    note = (
        "Medians of turns. Communication: what averaging gradients adds to a step; below zero it "
        "is lost in the noise."
    )
    series = [
        Series(
            SHOWN[name], [p["ranks"] for p in found["measured"]],
            [p["clips_per_s"]["median"] for p in found["measured"]],
            [p["clips_per_s"]["low"] for p in found["measured"]],
            [p["clips_per_s"]["high"] for p in found["measured"]],
        )
        for name, found in measured.items()
    ]  # fmt: skip
    worlds = list(series[0].x)
    about = "Clips a second of all ranks against their number, for three small networks."
    plot = Lines(about, "ranks", "clips a second", series, x_ticks=worlds)
    text = (
        f"The same three ways to see time on a ResNet-14 and {FRAMES} frames of {SIZE}², one clip "
        f"a rank, one thread each, DistributedDataParallel over Gloo. All ranks share {cores} "
        "cores, their memory and a loopback network: this shows that the parts work together and "
        "what gradients cost, not how machines of their own would scale."
    )
    return Part(
        "ranks", "Real ranks, here", text, [Table(columns, rows, "", note)], {"speed": plot}
    )
