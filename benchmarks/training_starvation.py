"""Step time with the loader against step time on data that lie in memory.

The step takes as long as one decoder needs for a batch, the hardest case in which a loader can
still keep up: matrix products on one thread, on a core of their own; one decoding worker has
another core. What stands for the device, conversion of the batch from I420 to normalised RGB and
the matrix products, is the same in both arms; `from_memory` converts the same bytes again and
again. The overlap is the one median divided by the other: 1 means that loading costs a training
run nothing.

Arms take turns of some steps; the first steps of a turn, which use up what was decoded ahead
while the other arm had its turn, are not counted.

    python benchmarks/training_starvation.py --json benchmarks/results/training_starvation.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from loader_hostile import place_decoders  # noqa: E402
from repeated_augmentation import SPEC, prepare  # noqa: E402

from matinee.data.assemble import assemble  # noqa: E402
from matinee.data.device import IMAGENET_MEAN, IMAGENET_STD  # noqa: E402
from matinee.data.loader import ClipLoader  # noqa: E402
from matinee.measure import machine  # noqa: E402
from matinee.media.decode import frame_bytes  # noqa: E402
from matinee.pack.reading.reader import Pack  # noqa: E402

PREFETCH = 2
_SIDE = 512


class Step:
    """Matrix products that take `seconds` of an undisturbed core."""

    def __init__(self) -> None:
        self._a, self._b = torch.randn(2, _SIDE, _SIDE)
        self.products = 1

    def calibrate(self, seconds: float) -> None:
        times = []
        for _ in range(50):
            begin = time.thread_time()
            torch.mm(self._a, self._b)
            times.append(time.thread_time() - begin)
        self.products = max(1, round(seconds / median(times)))

    def __call__(self) -> None:
        for _ in range(self.products):
            torch.mm(self._a, self._b)


def run(pack: Pack, args: argparse.Namespace) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    step = Step()
    with ClipLoader(
        pack, clip=SPEC, batch_size=args.batch, repeats=100_000, workers=1, prefetch=PREFETCH
    ) as loader:
        iterator = iter(loader)
        next(iterator)
        place_decoders(loader, cores[-1])
        os.sched_setaffinity(0, {cores[0]})
        plans = [loader.plan(0, item) for item in range(args.batch)]
        formats = [pack.formats[pack.info(0).codec]] * args.batch
        shape = (args.batch, SPEC.frames, frame_bytes((SPEC.size, SPEC.size)))
        memory = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)

        def from_memory() -> None:
            assemble(memory, plans, formats, SPEC, device=torch.device("cpu"), mean=IMAGENET_MEAN,
                     std=IMAGENET_STD)  # fmt: skip
            step()

        def from_loader() -> None:
            next(iterator)
            step()

        decoding = _decoding_time(loader, iterator, args)
        converting = median(_times(from_memory, 8, time.thread_time))  # with a single product
        step.calibrate(max(0.0, decoding - converting))
        spent: dict[str, list[float]] = {"memory": [], "loader": []}
        for turn in range(args.turns):
            for name, work in (("memory", from_memory), ("loader", from_loader)):
                spent[name] += _times(work, args.steps + 2 * PREFETCH)[2 * PREFETCH :]
            print(f"turn {turn + 1} of {args.turns}", file=sys.stderr)
    middle = {name: median(times) for name, times in spent.items()}
    return {
        "decoding_ms_per_batch": 1000 * decoding,
        "converting_ms_per_batch": 1000 * converting,
        "step_ms": {name: 1000 * value for name, value in middle.items()},
        "quartiles_ms": {
            name: [float(1000 * np.percentile(times, q)) for q in (25, 75)]
            for name, times in spent.items()
        },
        "step_over_decoding": middle["memory"] / decoding,
        "overlap": middle["memory"] / middle["loader"],
    }


def _decoding_time(loader: ClipLoader, iterator: Any, args: argparse.Namespace) -> float:
    """Seconds in which the worker decodes a batch: of its own processor time."""
    pid = loader._backend.pids[0]  # type: ignore[union-attr]
    ticks = os.sysconf("SC_CLK_TCK")

    def used() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / ticks

    batches = 2 * args.steps
    for _ in range(PREFETCH):
        next(iterator)
    before = used()
    for _ in range(batches):
        next(iterator)
    return (used() - before) / batches


def _times(work: Any, count: int, clock: Any = time.perf_counter) -> list[float]:
    spent = []
    for _ in range(count):
        begin = clock()
        work()
        spent.append(clock() - begin)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, required=True, help="result file")
    parser.add_argument("--turns", type=int, default=7, help="turns of each arm")
    parser.add_argument("--steps", type=int, default=15, help="counted steps of a turn")
    parser.add_argument("--batch", type=int, default=16, help="clips a batch")
    parser.add_argument("--footage", type=int, default=60, help="seconds of footage")
    args = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("this needs two cores: one to train on, one to decode on")
    torch.set_num_threads(1)
    described = machine.describe("matinee", "av", "torch")
    with tempfile.TemporaryDirectory() as folder:
        measured = run(prepare(Path(folder), args.footage), args)
    result = {
        "benchmark": "training_starvation",
        "clip": {"frames": SPEC.frames, "stride": SPEC.stride, "size": SPEC.size},
        "batch": args.batch,
        "prefetch": PREFETCH,
        "machine": described,
        "load_average": os.getloadavg()[0],
        **measured,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"overlap {result['overlap']:.3f}; {json.dumps(result['step_ms'])}", file=sys.stderr)


if __name__ == "__main__":
    main()
