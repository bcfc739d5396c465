"""How far decoding scales in one process, what planning costs, and whether memory stays flat.

Real footage (288p, a layered pack), clips of 16 frames at stride 4 and 224².

- `gil`: the share of a decoding thread's time in which it holds the interpreter's lock, seen from
  another process (gil.py), and processor time a clip; from them the number of threads at which one
  process stops scaling. With n threads of which each needs the lock for the share g, the lock is
  the one station of a closed queue at which threads wait for each other: exact mean value analysis
  gives the speed-up X(n) = n / (1 - g + g (1 + Q(n - 1))), Q(n) = X(n) g (1 + Q(n - 1)), which ends
  at 1 / g.
- `scaling`: clips a second of one thread, of two threads in one process, of two processes.
- `planning`: microseconds of the training process's own time a clip for planning, submitting and
  collecting; conversion to RGB, which a GPU does, is left out.
- `memory`: resident bytes of the training process and of all workers over many clips: their own
  (anonymous) pages, and those of the shared batch memory.

    python benchmarks/loader_scale.py --json benchmarks/results/loader_scale.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from gil import Observed  # noqa: E402
from repeated_augmentation import SPEC, prepare  # noqa: E402

import matinee.data.loader  # noqa: E402
from matinee.data.loader import ClipLoader  # noqa: E402
from matinee.measure import machine  # noqa: E402
from matinee.pack.reading.reader import Pack  # noqa: E402

BATCH = 8
_DECODE = """
import os, sys, time
sys.path[:] = {path!r}
for name in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS'): os.environ[name] = '1'
import numpy as np
from matinee.data.clips import plan_training_clip
from matinee.data.random import generator
from matinee.data.decode_job import ClipJob, DecodeJob
from matinee.media.decode import frame_bytes
from matinee.pack.reading.reader import Pack
from repeated_augmentation import SPEC
pack = Pack({pack!r})
size = (SPEC.size, SPEC.size)
shape = (1, 8, SPEC.frames, frame_bytes(size))
decode = DecodeJob(pack.formats, np.zeros(shape, np.uint8), shape)
jobs = []
for number in range(64):
    plan = plan_training_clip(pack.info(0), SPEC, generator(0, 0, number, 'clip0'))
    jobs.append(ClipJob(0, pack.locate(plan.video, plan.frames), ((0, plan.box),), size))
def decoding(seconds):
    # Jobs lie ready: what is measured is what a worker does.
    begin, cpu, clips = time.perf_counter(), time.thread_time(), 0
    while time.perf_counter() - begin < seconds:
        assert decode(jobs[clips % len(jobs)]).failure is None
        clips += 1
    return clips, time.thread_time() - cpu, time.perf_counter() - begin
decoding(0.5)
"""


def measure_gil(pack: Path, seconds: float) -> dict[str, Any]:
    """Share of a decoding thread's time with the lock held, and what follows from it."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    with Observed(_DECODE.format(pack=str(pack), path=sys.path), core=cores[0]) as observed:
        checked = observed.calibrate()
        shares, cpu = [], []
        for _ in range(5):
            share, (clips, spent, _) = observed.share(f"decoding({seconds / 5})")
            shares.append(share)
            cpu.append(1000 * spent / clips)
    os.sched_setaffinity(0, cores)
    share = median(shares)
    speedups = predict(share, 64)
    steps = np.diff([0.0, *speedups])
    return {
        "calibration": {"measured": checked[0], "known": checked[1]},
        "share_held": share,
        "share_held_of_turns": shares,
        "cpu_ms_per_clip": median(cpu),
        "lock_ms_per_clip": share * median(cpu),
        "predicted_speedup_of_threads": {str(n): speedups[n - 1] for n in (1, 2, 4, 8, 16, 32)},
        "threads_at_most_worth": 1 / share,
        # The first thread that adds less than half of what a core of its own would.
        "predicted_threads_where_scaling_stops": int(np.argmax(steps < 0.5)) or None,
    }


def predict(share: float, most: int) -> list[float]:
    """Speed-up of 1 … `most` threads that hold the lock for `share` of their time."""
    waiting, speedups = 0.0, []
    for threads in range(1, most + 1):
        at_lock = share * (1 + waiting)
        speedups.append(threads / (1 - share + at_lock))
        waiting = speedups[-1] * at_lock
    return speedups


def measure_scaling(pack: Pack, seconds: float, turns: int) -> dict[str, Any]:
    """Clips a second of decoders on two cores, in turns."""
    arms = {"1_thread": (1, 1), "2_threads": (2, 2), "2_processes": (2, 1)}
    rates: dict[str, list[float]] = {name: [] for name in arms}
    rng = np.random.default_rng(0)
    for _ in range(turns):
        for name in (list(arms)[i] for i in rng.permutation(len(arms))):
            workers, threads = arms[name]
            with ClipLoader(
                pack, clip=SPEC, batch_size=BATCH, repeats=100_000, workers=workers,
                threads=threads, prefetch=3, device="meta",  # decoding alone; conversion is a GPU's
            ) as loader:  # fmt: skip
                iterator = iter(loader)
                for _ in range(3):
                    next(iterator)
                begin, clips = time.perf_counter(), 0
                while time.perf_counter() - begin < seconds:
                    next(iterator)
                    clips += BATCH
                rates[name].append(clips / (time.perf_counter() - begin))
    middle = {name: median(values) for name, values in rates.items()}
    return {
        "clips_per_s": middle,
        "of_turns": rates,
        "2_threads_over_1": middle["2_threads"] / middle["1_thread"],
        "2_processes_over_1": middle["2_processes"] / middle["1_thread"],
    }


def measure_planning(pack: Pack, batches: int) -> dict[str, float]:
    """Microseconds of the main thread a clip, all but conversion."""
    assemble = matinee.data.loader.assemble
    spent = []
    with ClipLoader(pack, clip=SPEC, batch_size=16, repeats=100_000, workers=1) as loader:
        iterator = iter(loader)
        video = next(iterator).video
        matinee.data.loader.assemble = lambda *_, **__: video  # type: ignore[assignment]
        for _ in range(batches):
            begin = time.thread_time()
            next(iterator)
            spent.append(1e6 * (time.thread_time() - begin) / 16)
        matinee.data.loader.assemble = assemble
        begin = time.thread_time()
        for item in range(1000):
            plan = loader.plan(1, item)
            pack.locate(plan.video, plan.frames)
        planning = 1e6 * (time.thread_time() - begin) / 1000
    return {"main_thread_us_per_clip": median(spent), "of_these_plan_and_locate": planning}


def resident(pid: int) -> tuple[int, int]:
    """Bytes of a process in memory: its own, and shared."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssFile", "RssShmem"):
            found[name] = 1024 * int(value.split()[0])
    return found["RssAnon"], found["RssShmem"]


def measure_memory(pack: Pack, clips: int) -> dict[str, Any]:
    """A trace of resident memory while batches are drawn."""
    trace: list[dict[str, float]] = []
    with ClipLoader(pack, clip=SPEC, batch_size=BATCH, repeats=100_000) as loader:
        iterator, done = iter(loader), 0
        next(iterator)
        pids = loader._backend.pids  # type: ignore[union-attr]
        step = max(1, clips // BATCH // 200)
        begin = time.perf_counter()
        while done < clips:
            next(iterator)
            done += BATCH
            if done // BATCH % step == 0:
                workers = [resident(pid) for pid in pids]
                own, shared = resident(os.getpid())
                trace.append({
                    "clips": done, "training_mib": own / 2**20, "batch_memory_mib": shared / 2**20,
                    "workers_mib": sum(w[0] for w in workers) / 2**20,
                })  # fmt: skip
            if time.perf_counter() - begin > 10:
                print(f"memory: {done} of {clips} clips", file=sys.stderr)
                begin = time.perf_counter()
        explained = loader.explain()
        each = resident(pids[0])[0] / 2**20
    growth = {}
    for name in ("training_mib", "workers_mib"):
        late = trace[len(trace) // 5 :]
        slope = np.polyfit([t["clips"] for t in late], [t[name] for t in late], 1)[0]
        growth[name] = float(1000 * slope)
    return {
        "decoders": explained,
        "worker_mib": each,
        "growth_mib_per_1000_clips_after_the_first_fifth": growth,
        "trace": trace,
    }


def plot(trace: list[dict[str, float]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "matinee", "svg.fonttype": "none"})
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axis = figure.subplots()
    for name, label in (
        ("training_mib", "training process"), ("workers_mib", "all workers"),
        ("batch_memory_mib", "batch memory"),
    ):  # fmt: skip
        axis.plot([t["clips"] for t in trace], [t[name] for t in trace], label=label)
    axis.set(xlabel="clips", ylabel="resident MiB", ylim=(0, None))
    axis.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, required=True, help="result file, a plot beside it")
    parser.add_argument("--clips", type=int, default=10_000, help="clips of the memory trace")
    parser.add_argument("--turns", type=int, default=7, help="turns of the scaling arms")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a turn")
    parser.add_argument("--footage", type=int, default=60, help="seconds of footage")
    args = parser.parse_args()
    torch.set_num_threads(1)
    assert threading.active_count() == 1
    described = machine.describe("matinee", "av", "torch", "numpy")
    with tempfile.TemporaryDirectory() as folder:
        pack = prepare(Path(folder), args.footage)
        gil = measure_gil(Path(folder) / "layered.pack", 5 * args.seconds)
        print(json.dumps(gil, indent=1), file=sys.stderr)
        result: dict[str, Any] = {
            "benchmark": "loader_scale",
            "clip": {"frames": SPEC.frames, "stride": SPEC.stride, "size": SPEC.size},
            "machine": described,
            "load_average": os.getloadavg()[0],
            "gil": gil,
            "scaling": measure_scaling(pack, args.seconds, args.turns),
            "planning": measure_planning(pack, 30),
            "memory": measure_memory(pack, args.clips),
        }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    plot(result["memory"]["trace"], args.json.with_suffix(".svg"))
    for name in ("scaling", "planning", "memory"):
        shown = {k: v for k, v in result[name].items() if k not in ("trace", "of_turns")}
        print(f"{name}: {json.dumps(shown)}", file=sys.stderr)


if __name__ == "__main__":
    main()
