"""The whole reproduction: four parts, and what the paper says beside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matinee.extras import require
from matinee.measure.arms import Spread
from matinee.measure.reproduce.kinetics15.accuracy import (
    accuracy_part,
    check_worlds,
    measure_accuracy,
)
from matinee.measure.reproduce.kinetics15.options import Options
from matinee.measure.reproduce.kinetics15.predicted import predicted_part
from matinee.measure.reproduce.kinetics15.published import (
    PUBLISHED_RANKS,
    PUBLISHED_S,
    TARGETS,
)
from matinee.measure.reproduce.kinetics15.ranks import ranks_part
from matinee.measure.reproduce.kinetics15.speed import (
    NETWORKS,
    PRECISIONS,
    Speeds,
    measure_speed,
    speed_part,
)
from matinee.measure.result import Part, Result, Table, options_of

OnStep = Callable[[int, int, str], None]
# Of the whole time, in percent.
SPEED, RANKS, PREDICTED, ACCURACY = 40, 15, 5, 40
_ENOUGH = 3  # rounds for a verdict


def reproduce(options: Options, *, on_step: OnStep) -> Result:
    """Measure everything and say it beside what was published.

    Raises:
        ConfigError: an option that cannot be used.
        MissingExtra: a package is not installed.
    """
    for package in ("timm", "matplotlib"):
        require(package, "train")
    scale = options.scale
    check_worlds(scale)
    speeds = measure_speed(scale, _told(on_step, 0, SPEED))
    networks, speed_data = speed_part(speeds)
    ranks, ranks_data = ranks_part(scale, _told(on_step, SPEED, RANKS))
    predicted, predicted_data = predicted_part(_told(on_step, SPEED + RANKS, PREDICTED))
    runs = measure_accuracy(scale, _told(on_step, SPEED + RANKS + PREDICTED, ACCURACY))
    accuracy, accuracy_data = accuracy_part(runs, scale)
    on_step(100, 100, "done")
    data = {
        "options": options_of(options), "networks": speed_data,
        "ranks": ranks_data, "predicted": predicted_data, "accuracy": accuracy_data,
    }  # fmt: skip
    return Result(
        "kinetics15", "Kinetics in 15 minutes, reproduced at this machine's size",
        "“Training Kinetics in 15 Minutes” (arXiv 1910.00932) finds three bottlenecks of training "
        "on thousands of GPUs: arithmetic, loading and communication. A 2-D network with a "
        "temporal shift has less of all three than 3-D ones. What this machine can measure is "
        "measured, what it cannot is predicted and marked so.",
        [_summary(speeds, data), networks, ranks, predicted, accuracy], data,
    )  # fmt: skip


def _told(on_step: OnStep, before: int, share: int) -> Callable[[float, str], None]:
    """Progress of a part that takes `share` percent, after `before`."""
    return lambda part, note: on_step(int(before + share * part), 100, note)


def _summary(speeds: Speeds, data: dict[str, Any]) -> Part:
    rows = []
    for precision in PRECISIONS:
        for name, least in TARGETS.items():
            ratio, bound = speeds.tsm_faster(name, precision), speeds.bound(name, precision)
            rows.append([
                f"TSM over {NETWORKS[name]}, {precision}", "1.6× and 2.9× (two 3-D networks)",
                f"{least:.1f}×", f"{ratio.median:.2f}×",
                _verdict(ratio, bound, least),
            ])  # fmt: skip
    cost = speeds.tsm_faster("tsn", "fp32").median, speeds.tsm_faster("tsn", "bf16").median
    rows.append([
        "what the shift costs of a step, fp32 and bf16", "0 FLOPs", "",
        " and ".join(f"{100 * (1 / c - 1):.0f} %" for c in cost), "",
    ])  # fmt: skip
    curve = {p["ranks"]: p for p in data["predicted"]["curves"]["tsm"]}
    found = curve[PUBLISHED_RANKS]["seconds"]
    off = found / PUBLISHED_S - 1
    rows.append([
        f"100 epochs on {PUBLISHED_RANKS:,} V100s, predicted", f"{PUBLISHED_S / 60:.1f} min",
        "± 10 %", f"{found / 60:.1f} min ({100 * off:+.0f} %)", "yes" if abs(off) <= 0.1 else "no",
    ])  # fmt: skip
    accuracy = data["accuracy"]
    rows.append([
        "simulated ranks at which accuracy breaks", f"holds at {PUBLISHED_RANKS:,}", "",
        str(accuracy["breaks_at"] or f"holds at {max(accuracy['mean_top1'])}")
        if accuracy["learned"] else "one rank did not learn", "",
    ])  # fmt: skip
    columns = ["what", "published", "wanted", "here", "reached"]
    return Part("summary", "In short", "", [Table(columns, rows)])


def _verdict(ratio: Spread, bound: Spread, least: float) -> str:
    if ratio.count < _ENOUGH:
        return f"no verdict from {ratio.count} of {_ENOUGH} rounds"
    if ratio.median >= least:
        return "yes"
    return f"no; TSN, whose shift is none, is {bound.median:.2f}× as fast"
