"""What the planner predicts for thousands of Summit's GPUs, beside what was published.

# Note [From TSM to the I3Ds]
One run was published with its time on one node: TSM's. From it the planner has the seconds that a
V100 needs for one of TSM's clips (`plan.published`). An I3D's clip takes as many times longer as
the roofline of the same card says, which is counted, not measured; its gradients are as long as its
parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from matinee.measure.draw.figures import Lines, Series
from matinee.measure.plan.assumptions import Assumptions
from matinee.measure.plan.cards import find_card, read_cards
from matinee.measure.plan.jitter import Tailed
from matinee.measure.plan.published import KINETICS_FACTS, kinetics_job, kinetics_seconds
from matinee.measure.plan.scaling import Point, predict_step
from matinee.measure.plan.step_time import compute_seconds
from matinee.measure.plan.work import count_work
from matinee.measure.reproduce.kinetics15.published import (
    NODE,
    ONE_NODE_S,
    PUBLISHED_RANKS,
    PUBLISHED_S,
    SCALING,
    published_efficiency,
)
from matinee.measure.result import Part, Table
from matinee.recipes import RECIPES

RECIPE = {"tsm": "tsm_kinetics", "i3d_333": "i3d_333_kinetics", "i3d_311": "i3d_311_kinetics"}
SHOWN = {"tsm": "TSM", "i3d_333": "I3D 3×3×3", "i3d_311": "I3D 3×1×1"}
COUNTS = (6, 12, 24, 48, 96, 192, 384, 768, 1536, 3072, 6144)
TOLD = (6, 96, 384, 1536, 6144)
CLASSES, CARD = 400, "V100"


def predicted_part(tell: Callable[[float, str], None]) -> tuple[Part, dict[str, Any]]:
    """The part of the page, and its numbers."""
    take = Assumptions()
    spread = Tailed(take.jitter, take.slowest, take.slowest_of)
    job, network = kinetics_job(take, spread)
    card = find_card(CARD, read_cards())
    seconds: dict[str, float] = {}
    gradients: dict[str, int] = {}
    for number, (name, recipe) in enumerate(RECIPE.items()):
        tell(number / len(RECIPE), f"counting the work of {SHOWN[name]}")
        config = RECIPES[recipe]("", "")
        work = count_work(config, micro_batch=job.clips, precision="fp32", classes=CLASSES)
        seconds[name] = compute_seconds(work, config, card, "fp32", take, 1).total
        gradients[name] = work.gradient_bytes
    slower = {name: seconds[name] / seconds["tsm"] for name in RECIPE}
    points: dict[str, list[Point]] = {}
    for name in RECIPE:
        # See Note [From TSM to the I3Ds].
        own = replace(
            job, clip_seconds=job.clip_seconds * slower[name],
            gradient_bytes=job.gradient_bytes * gradients[name] / gradients["tsm"],
        )  # fmt: skip
        points[name] = [predict_step(own, network, spread, ranks) for ranks in COUNTS]
    return _part(points, slower, gradients), _data(points, slower, gradients, take)


def _part(
    points: dict[str, list[Point]], slower: dict[str, float], gradients: dict[str, int]
) -> Part:
    at = {p.ranks: p for p in points["tsm"]}
    found, wanted = kinetics_seconds(at[PUBLISHED_RANKS]) / 60, PUBLISHED_S / 60
    mine = _against_node(points["tsm"], PUBLISHED_RANKS)
    text = (
        f"From the published single node alone (6 V100s, {ONE_NODE_S / 3600:.2f} h) and the "
        f"planner's stated assumptions, {PUBLISHED_RANKS:,} GPUs take {found:.1f} min "
        f"({100 * (found / wanted - 1):+.0f} % of the published {wanted:.1f} min): "
        f"{100 * mine:.0f} % of a node's speed in each node, published "
        f"{100 * published_efficiency():.0f} %.\n\n"
        "An I3D's clip on a V100 was not published: it takes as many times TSM's as the roofline "
        "of the card says. Its gradients are longer, but so is its backward pass, which they "
        "travel beside. For more than 1,536 GPUs there is no published time to check the curve "
        "with."
    )
    return Part(
        "predicted", "1,536 GPUs and more, predicted", text,
        [_table(points), _parts_table(points), _given(slower, gradients), _published()],
        {"hours": _hours(points), "efficiency": _efficiency(points)},
    )  # fmt: skip


def _table(points: dict[str, list[Point]]) -> Table:
    rows = []
    for name, curve in points.items():
        for p in curve:
            if p.ranks in TOLD:
                published = {NODE: ONE_NODE_S, PUBLISHED_RANKS: PUBLISHED_S}.get(p.ranks)
                rows.append([
                    f"{SHOWN[name]}, {p.ranks:,} GPUs", f"{p.clips:,}", f"{p.rate:,.0f}",
                    f"{100 * _against_node(curve, p.ranks):.0f} %", _time(kinetics_seconds(p)),
                    _time(published) if published and name == "tsm" else "",
                ])  # fmt: skip
    columns = ["network", "clips a step", "clips/s", "efficiency", "100 epochs take", "published"]
    note = (
        "Efficiency: speed of each node against one node alone. The published node is what the "
        "curve starts from, not a prediction."
    )
    return Table(columns, rows, "Predicted training", note)


def _parts_table(points: dict[str, list[Point]]) -> Table:
    rows = []
    for name, curve in points.items():
        for p in curve:
            if p.ranks in (PUBLISHED_RANKS, COUNTS[-1]):
                rows.append([
                    f"{SHOWN[name]}, {p.ranks:,} GPUs", f"{1e3 * p.compute:.0f}",
                    f"{1e3 * p.straggler:.0f}", f"{1e3 * p.exposed:.1f}", f"{1e3 * p.reduce:.1f}",
                    p.way,
                ])  # fmt: skip
    columns = ["network", "computing, ms", "slowest rank, ms", "waiting for gradients, ms",
               "all-reduce in all, ms", "way"]  # fmt: skip
    note = "Waiting: what of the all-reduce does not hide behind the backward pass."
    return Table(columns, rows, "Where a step goes", note)


def _given(slower: dict[str, float], gradients: dict[str, int]) -> Table:
    rows = [[f.name, f"{_number(f.value)} {f.unit}".strip(), f.source] for f in KINETICS_FACTS]
    rows += [
        [f"{SHOWN[n]}, a clip on a V100", f"{times:.2f} × TSM's", "roofline, fp32, 8 clips"]
        for n, times in slower.items() if n != "tsm"
    ]  # fmt: skip
    rows += [
        [f"{SHOWN[n]}, gradients", f"{size / 1e6:.1f} MB", "parameters, float32"]
        for n, size in gradients.items()
    ]
    rows += [[n.replace("_", " "), f"{v:g}", why] for n, v, why in Assumptions().rows()
             if n in ("link_efficiency", "nvlink_us", "network_us", "jitter", "slowest",
                      "slowest_of")]  # fmt: skip
    return Table(["what", "value", "source"], rows, "What goes in")


def _published() -> Table:
    rows = [[said.what, said.value, said.source] for said in SCALING]
    return Table(["what", "published", "source"], rows, "What was published")


def _hours(points: dict[str, list[Point]]) -> Lines:
    series = [
        Series(SHOWN[n], [p.ranks for p in curve], [kinetics_seconds(p) / 3600 for p in curve])
        for n, curve in points.items()
    ]
    published = Series(
        "published, TSM", (NODE, PUBLISHED_RANKS), (ONE_NODE_S / 3600, PUBLISHED_S / 3600),
        style="dots",
    )  # fmt: skip
    about = "Hours of 100 epochs of Kinetics-400 against GPUs, predicted and published."
    return Lines(
        about, "V100s", "hours", [*series, published], x_log=True, y_log=True,
        x_ticks=(6, 48, 384, 1536, 6144),
    )  # fmt: skip


def _efficiency(points: dict[str, list[Point]]) -> Lines:
    series = [
        Series(
            SHOWN[n], [p.ranks for p in curve],
            [100 * _against_node(curve, p.ranks) for p in curve],
        )
        for n, curve in points.items()
    ]  # fmt: skip
    published = Series(
        "published, TSM", (NODE, PUBLISHED_RANKS), (100, 100 * published_efficiency()),
        style="dots",
    )  # fmt: skip
    about = "Speed of each node against one node alone, in percent, against GPUs."
    return Lines(
        about, "V100s", "efficiency, %", [*series, published], x_log=True,
        x_ticks=(6, 48, 384, 1536, 6144),
    )  # fmt: skip


def _against_node(curve: list[Point], ranks: int) -> float:
    at = {p.ranks: p.rate / p.ranks for p in curve}
    return at[ranks] / at[NODE]


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= value < 1e7 else f"{value:.4g}"


def _time(seconds: float) -> str:
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02} m"
    return f"{int(seconds // 60)} m {int(seconds % 60):02} s"


def _data(
    points: dict[str, list[Point]], slower: dict[str, float], gradients: dict[str, int],
    take: Assumptions,
) -> dict[str, Any]:  # fmt: skip
    return {
        "curves": {
            name: [
                {**vars(p), "step": p.step, "seconds": kinetics_seconds(p),
                 "efficiency_against_node": _against_node(curve, p.ranks)}
                for p in curve
            ]
            for name, curve in points.items()
        },
        "clip_seconds_over_tsm": slower, "gradient_bytes": gradients, "assumptions": vars(take),
        "published": [vars(said) for said in SCALING],
        "published_efficiency": published_efficiency(),
    }  # fmt: skip
