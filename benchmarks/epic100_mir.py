"""EPIC-KITCHENS-100 multi-instance retrieval on the real annotations: figures, seconds, memory.

The relevancy of the 9668 test clips and 3842 sentences; mAP (both ways) and nDCG of random
similarities, beside their exact expectation, and of the oracle, which ranks by relevancy. `whole`
is what one evaluation costs: reading, relevancy, both directions. One thread; `cpu_seconds` are
what the process itself used, `seconds` what went by (more on a busy machine).

    python benchmarks/epic100_mir.py DATA/epic100 --json benchmarks/results/epic100_mir.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, stdev
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402

from matinee.evaluation.epic100 import (  # noqa: E402
    MAP,
    mir_chance,
    mir_metrics,
    relevancy_matrix,
)
from matinee.evaluation.epic100_csv import read_clips, read_sentences  # noqa: E402
from matinee.measure import machine  # noqa: E402

SEEDS = (0, 1, 2)
VARIANTS: tuple[MAP, ...] = ("graded", "binary")


def measure(folder: Path) -> dict[str, Any]:
    """All figures of the annotations in `folder`."""
    seconds: dict[str, float] = {}
    cpu_seconds: dict[str, float] = {}
    with clock("read", seconds, cpu_seconds):
        clips = read_clips(folder / "EPIC_100_retrieval_test.csv")
        sentences = read_sentences(folder / "EPIC_100_retrieval_test_sentence.csv", clips)
    with clock("relevancy", seconds, cpu_seconds):
        relevancy = relevancy_matrix(clips.verbs, clips.nouns, sentences.verbs, sentences.nouns)
    result: dict[str, Any] = {
        "shape": list(relevancy.shape),
        "mean_relevancy": float(relevancy.mean(dtype=np.float64)),
        "values": [round(float(value), 4) for value in np.unique(relevancy)],
    }
    for variant in VARIANTS:
        drawn = []
        for seed in SEEDS:
            similarity = np.random.default_rng(seed).random(relevancy.shape, dtype=np.float32)
            with clock("metrics", seconds, cpu_seconds):
                drawn.append(mir_metrics(similarity, relevancy, variant))
        result[variant] = {
            "random_mean": {key: mean(run[key] for run in drawn) for key in drawn[0]},
            "random_spread": {key: stdev(run[key] for run in drawn) for key in drawn[0]},
            "random_expected": mir_chance(relevancy, variant),
            "oracle": mir_metrics(relevancy, relevancy, variant),
        }
    for spent in (seconds, cpu_seconds):
        spent["whole"] = sum(spent.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return result | {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mb": peak}


@contextmanager
def clock(name: str, seconds: dict[str, float], cpu_seconds: dict[str, float]) -> Iterator[None]:
    """Wall and processor time of the block, the last one of a name."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    seconds[name] = time.perf_counter() - wall
    cpu_seconds[name] = time.process_time() - cpu


def show(result: dict[str, Any]) -> None:
    """Print the figures as a table."""
    rows, columns = result["shape"]
    print(f"relevancy {rows} × {columns}, mean {result['mean_relevancy']:.4f}")
    keys = [key for key in result["graded"]["oracle"] if "without_hit" not in key]
    print(f"{'':24}" + "".join(f"{key:>14}" for key in keys))
    for variant in VARIANTS:
        for kind, values in result[variant].items():
            print(f"{variant + ' ' + kind:24}" + "".join(f"{values[key]:14.5f}" for key in keys))
    for kind in ("seconds", "cpu_seconds"):
        print(f"{kind}: " + ", ".join(f"{k} {value:.2f}" for k, value in result[kind].items()))
    print(f"peak {result['peak_mb']:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("data", type=Path, help="folder of the EPIC-KITCHENS-100 annotations")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    result = {
        "benchmark": "epic100_mir",
        "machine": machine.describe("matinee", "numpy"),
        "seeds": list(SEEDS),
        **measure(args.data),
    }
    show(result)
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
