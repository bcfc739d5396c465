"""Clips a second beside a thread of pure Python in the training process, and without it.

A training loop may compute in Python for long: tokenise, log, augment by hand. Such a thread gives
up the interpreter's lock only when it is asked to, after 5 ms. Both modes of the loader are
measured, with one decoder.

Cores are divided in the same way whether the thread is busy or not, so that it takes nothing away
but the lock: the training process, its main thread and the busy one, stays on one core; the
decoder, a process or a thread, has another for itself. The main thread draws batches and does
nothing else. On a CPU that includes turning I420 into float RGB, about half as much work as
decoding, for which the main thread and the busy one share their core; `device_apart` is the same
where that costs the training process nothing, as with a GPU (torch's "meta" device here). Arms take
turns in an order drawn anew; medians are reported.

    python benchmarks/loader_hostile.py --json benchmarks/results/loader_hostile.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from repeated_augmentation import SPEC, prepare  # noqa: E402

from matinee.data.loader import ClipLoader  # noqa: E402
from matinee.measure import machine  # noqa: E402
from matinee.pack.reading.reader import Pack  # noqa: E402


@contextmanager
def busy_thread() -> Iterator[None]:
    """Pure Python all the while."""
    stop = False

    def compute() -> None:
        number = 1
        while not stop:
            number = number * 3 % 1_000_003

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        stop = True
        thread.join()


def place_decoders(loader: ClipLoader, core: int) -> None:
    """Keep all that decodes on one core."""
    for thread in threading.enumerate():
        if thread.name.startswith("matinee-decode"):
            assert thread.native_id is not None
            os.sched_setaffinity(thread.native_id, {core})
    for pid in getattr(loader._backend, "pids", ()):
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {core})


def measure(pack: Pack, arm: str, busy: bool, args: argparse.Namespace) -> float:
    """Clips a second of one turn."""
    first, last = args.cores
    with ClipLoader(
        pack, clip=SPEC, batch_size=args.batch, repeats=100_000, workers=1,
        mode="threads" if arm.startswith("threads") else "processes",
        device="meta" if arm.endswith("device_apart") else "cpu",
    ) as loader:  # fmt: skip
        iterator = iter(loader)
        next(iterator)
        place_decoders(loader, last)
        os.sched_setaffinity(threading.get_native_id(), {first})
        if not busy:
            return _rate(iterator, args)
        with busy_thread():
            return _rate(iterator, args)


def _rate(iterator: Iterator[Any], args: argparse.Namespace) -> float:
    for _ in range(3):  # what was decoded ahead
        next(iterator)
    begin, clips = time.perf_counter(), 0
    while time.perf_counter() - begin < args.seconds:
        next(iterator)
        clips += args.batch
    return clips / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, required=True, help="result file")
    parser.add_argument("--turns", type=int, default=7, help="turns of each arm")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn, at least")
    parser.add_argument("--batch", type=int, default=16, help="clips a batch")
    parser.add_argument("--footage", type=int, default=60, help="seconds of footage")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("this needs two cores: one for the training process, one to decode on")
    args.cores = (cores[0], cores[-1])
    torch.set_num_threads(1)
    described = machine.describe("matinee", "av", "torch")
    names = ("processes", "processes_device_apart", "threads_device_apart")
    arms = [(name, busy) for name in names for busy in (False, True)]
    rates: dict[tuple[str, bool], list[float]] = {arm: [] for arm in arms}
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        pack = prepare(Path(folder), args.footage)
        for turn in range(args.turns):
            for name, busy in (arms[i] for i in rng.permutation(len(arms))):
                os.sched_setaffinity(0, cores)
                rates[name, busy].append(measure(pack, name, busy, args))
            print(f"turn {turn + 1} of {args.turns}", file=sys.stderr)
    result: dict[str, Any] = {
        "benchmark": "loader_hostile",
        "clip": {"frames": SPEC.frames, "stride": SPEC.stride, "size": SPEC.size},
        "batch": args.batch,
        "machine": described,
        "load_average": os.getloadavg()[0],
    }
    for name in names:
        idle, busy = rates[name, False], rates[name, True]
        result[name] = {
            "clips_per_s": {"idle": median(idle), "busy": median(busy)},
            "busy_over_idle": median(busy) / median(idle),
            "of_turns": {"idle": idle, "busy": busy},
        }
        print(f"{name}: busy / idle {result[name]['busy_over_idle']:.3f}", file=sys.stderr)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
