"""Published training times beside what the planner predicts for them.

Writes JSON: TSM on 1,536 V100s from its single node (arXiv 1910.00932), AVION's pretraining on 8
A5000s (arXiv 2309.16669), timm's training rates on an RTX 3090, how busy other published runs kept
their devices, every assumption with its reason, and what comes out if one were a tenth smaller or
larger. Needs no GPU and no data; half a minute.

    python benchmarks/published_scaling.py --out benchmarks/results/published_scaling.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from matinee.measure.plan.assumptions import Assumptions
from matinee.measure.plan.jitter import Jitter, Lognormal, Tailed
from matinee.measure.plan.published import (
    AVION_FACTS,
    KINETICS_FACTS,
    SINGLE_NODE_S,
    SUMMIT_NODE,
    Compared,
    avion,
    avion_hours,
    avion_plan,
    busy_runs,
    kinetics15,
    kinetics_job,
    kinetics_seconds,
    timm_rates,
)
from matinee.measure.plan.scaling import predict_step
from matinee.measure.plan.whole import plan_run, variations

POINTS = (6, 96, 192, 384, 768, 1536, 3072, 6144)
BY = 0.1
NEWER_NETWORK_US = 14.0
"""Of NCCL's tuning model from version 2.18 on, in the place of `Assumptions.network_us`."""
WITHOUT_CARD = ("link_efficiency", "nvlink_us", "network_us", "jitter", "slowest", "slowest_of")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    take = Assumptions()
    rates, busy = timm_rates(take), busy_runs(take)
    result = {
        "benchmark": "published_scaling",
        "kinetics15": _kinetics(take),
        "avion": _avion(take),
        "timm_rtx3090": {
            "compared": [_row(c) for c in rates],
            "rms_log_error": float(np.sqrt(np.mean([np.log1p(c.error) ** 2 for c in rates]))),
        },
        "busy": {
            "compared": [_row(c) | {"busy": c.published / c.predicted} for c in busy],
            "median": median(c.published / c.predicted for c in busy),
        },
        "assumptions": [{"name": n, "value": v, "why": w} for n, v, w in take.rows()],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    for name in ("kinetics15", "avion"):
        for row in result[name]["compared"]:
            print(f"{row['what']}: {row['predicted']:.2f} {row['unit']}, published "
                  f"{row['published']:.2f} ({row['error']:+.1%})")  # fmt: skip
        print("  depends most on", result[name]["sensitivity"][0]["assumption"])
    newer = result["kinetics15"]["minutes_with_newer_network_us"]
    print(f"1,536 V100s with network_us {NEWER_NETWORK_US:g}: {newer:.3f} min")
    print(f"timm on an RTX 3090: {result['timm_rtx3090']['rms_log_error']:.1%} rms")
    print(f"busy: median {result['busy']['median']:.3f}, assumed {take.busy:g}")


def _row(compared: Compared) -> dict[str, Any]:
    return asdict(compared) | {"error": compared.error}


def _kinetics(take: Assumptions) -> dict[str, Any]:
    spread = Tailed(take.jitter, take.slowest, take.slowest_of)
    job, network = kinetics_job(take, spread)
    curve = []
    for ranks in POINTS:
        point = predict_step(job, network, spread, ranks)
        seconds = kinetics_seconds(point)
        speedup = SINGLE_NODE_S / seconds
        curve.append(asdict(point) | {
            "minutes": seconds / 60, "speedup": speedup,
            "efficiency_of_nodes": speedup / (ranks / SUMMIT_NODE),
        })  # fmt: skip
    others: dict[str, Jitter] = {
        "the spread alone, without the slowest": Lognormal(take.jitter),
        "the largest spread among applications, 22 %": Lognormal(0.22 / 5.4),
        "a lognormal with that slowest one": Lognormal(0.1),
    }
    rows = []
    for f in fields(take):
        if f.name not in WITHOUT_CARD:
            continue  # not in this prediction: the node's own time is
        pair = [
            replace(take, **{f.name: max(1.0 if f.name == "slowest" else 0.0,
                                         min(getattr(take, f.name) * by,
                                             1.0 if f.name == "link_efficiency" else np.inf))})
            for by in (1 - BY, 1 + BY)
        ]  # fmt: skip
        rows.append((f.name, *(kinetics15(each)[0].predicted for each in pair)))
    return {
        "facts": [asdict(fact) for fact in KINETICS_FACTS],
        "compared": [_row(c) for c in kinetics15(take)],
        "minutes_with_newer_network_us": kinetics15(replace(take, network_us=NEWER_NETWORK_US))[
            0
        ].predicted,
        "curve": curve,
        "other_spreads": {
            name: kinetics15(take, jitter)[0].predicted for name, jitter in others.items()
        },
        "sensitivity": _sorted(rows, kinetics15(take)[0].predicted),
    }


def _avion(take: Assumptions) -> dict[str, Any]:
    plan = avion_plan(take)
    rows = []
    for name, low, high in variations(plan.wish, BY):
        hours = [_hours_of(plan, wish) for wish in (low, high)]
        rows.append((name, *hours))
    always = avion(replace(take, busy=1.0))[0].predicted
    return {
        "facts": [asdict(fact) for fact in AVION_FACTS],
        "compared": [_row(c) for c in avion(take)],
        "hours_if_devices_were_always_busy": always,
        "step_seconds": asdict(plan.last.computation),
        "sensitivity": _sorted(rows, avion(take)[0].predicted),
    }


def _hours_of(plan: Any, wish: Any) -> float:
    return avion_hours(plan_run(replace(wish, batch=plan.batch)))


def _sorted(rows: list[tuple[str, float, float]], middle: float) -> list[dict[str, Any]]:
    rows.sort(key=lambda row: -max(abs(row[1] - middle), abs(row[2] - middle)))
    return [{"assumption": n, "10_percent_less": a, "10_percent_more": b} for n, a, b in rows]


if __name__ == "__main__":
    main()
