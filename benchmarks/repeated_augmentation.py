"""Processor time a clip when each decoded clip gives 1, 2 or 4 crops, on one core.

Real footage (288p, a layered pack), clips of 16 frames at stride 4 and 224², random-resized crops.
Two things are timed: reading alone (a `ClipReader`, from packets to I420 rows), with crops of one
decode beside as many separate decodes of the same clip; and the whole loader (one thread, batches
of 8 on the CPU, conversion to RGB included, which a GPU does otherwise). All take turns in one
process that is pinned to one core, in an order drawn anew for each turn; milliseconds are the
process's own, whatever else the machine does, and medians are reported.

    python benchmarks/repeated_augmentation.py --json benchmarks/results/repeated_augmentation.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import footage  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from matinee.data.clips import ClipSpec  # noqa: E402
from matinee.data.loader import ClipLoader  # noqa: E402
from matinee.measure import machine  # noqa: E402
from matinee.media.decode import frame_bytes  # noqa: E402
from matinee.pack.annotations import Annotations, Sample, VideoFile  # noqa: E402
from matinee.pack.profiles import make_profile  # noqa: E402
from matinee.pack.reading.clip import ClipReader  # noqa: E402
from matinee.pack.reading.reader import Pack  # noqa: E402
from matinee.pack.writing.writer import write_pack  # noqa: E402

CROPS = (1, 2, 4)
BATCH = 8
SPEC = ClipSpec(frames=16, sampling="dense", stride=4, size=224, scale=(0.5, 1.0))


def prepare(folder: Path, seconds: int) -> Pack:
    """A pack of one video of footage."""
    path = folder / "footage_288p.mp4"
    footage.write_x264(path, width=512, height=288, seconds=seconds)
    videos = Annotations((VideoFile(path.name, path),), (Sample(path.name, path.name),))
    write_pack(folder / "layered.pack", videos, make_profile("layered", stride=SPEC.stride))
    return Pack(folder / "layered.pack")


def time_reading(pack: Pack, clips: int) -> dict[str, list[float]]:
    """Milliseconds a clip of each of `clips` decoded clips, by name."""
    reader = ClipReader(pack.formats)
    size = (SPEC.size, SPEC.size)
    rows = np.empty((max(CROPS), SPEC.frames, frame_bytes(size)), np.uint8)
    planner = ClipLoader(pack, clip=SPEC, batch_size=max(CROPS), crops=max(CROPS), repeats=clips)
    spent: dict[str, list[float]] = {}
    rng = np.random.default_rng(0)
    for clip in range(clips):
        plans = [planner.plan(0, clip * max(CROPS) + crop) for crop in range(max(CROPS))]
        parts = pack.locate(plans[0].video, plans[0].frames)
        for at in rng.permutation(2 * len(CROPS)).tolist():
            crops, together = CROPS[at // 2], bool(at % 2)
            targets = [(rows[crop], plans[crop].box) for crop in range(crops)]
            begin = time.process_time()
            if together:
                reader.read_crops(parts, targets, size=size)
            else:
                for target in targets:
                    reader.read_crops(parts, [target], size=size)
            name = f"{crops}_{'together' if together else 'apart'}"
            spent.setdefault(name, []).append(1000 * (time.process_time() - begin) / crops)
    return spent


def time_loader(pack: Pack, turns: int, batches: int) -> dict[str, list[float]]:
    """Milliseconds a clip of each turn of `batches` batches, by name; each turn starts anew."""
    spent: dict[str, list[float]] = {}
    rng = np.random.default_rng(0)
    for turn in range(turns):
        for crops in rng.permutation(CROPS).tolist():
            with ClipLoader(
                pack, clip=SPEC, batch_size=BATCH, crops=crops, repeats=BATCH * batches // crops,
                workers=1, mode="threads", seed=turn,
            ) as loader:  # fmt: skip
                iterator = iter(loader)
                begin = time.process_time()
                for _ in range(batches):
                    next(iterator)
                seconds = time.process_time() - begin
            spent.setdefault(str(crops), []).append(1000 * seconds / (BATCH * batches))
    return spent


def summary(spent: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median and quartiles by name."""
    quartiles = {name: np.percentile(times, (25, 50, 75)) for name, times in spent.items()}
    return {
        name: {"median": float(q[1]), "lower": float(q[0]), "upper": float(q[2])}
        for name, q in sorted(quartiles.items())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, required=True, help="result file")
    parser.add_argument("--clips", type=int, default=80, help="clips to be read")
    parser.add_argument("--turns", type=int, default=12, help="turns of the loader")
    parser.add_argument("--batches", type=int, default=6, help="batches a turn")
    parser.add_argument("--seconds", type=int, default=60, help="length of the footage")
    args = parser.parse_args()
    torch.set_num_threads(1)
    described = machine.describe("matinee", "av", "torch")
    with tempfile.TemporaryDirectory() as folder:
        pack = prepare(Path(folder), args.seconds)
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        reading = summary(time_reading(pack, args.clips))
        loader = summary(time_loader(pack, args.turns, args.batches))
    result: dict[str, Any] = {
        "benchmark": "repeated_augmentation",
        "clip": {"frames": SPEC.frames, "stride": SPEC.stride, "size": SPEC.size},
        "batch": BATCH,
        "machine": described,
        "load_average": os.getloadavg()[0],
        "reading_ms_per_clip": reading,
        "loader_ms_per_clip": loader,
        "reading_speedup": {
            str(n): reading[f"{n}_apart"]["median"] / reading[f"{n}_together"]["median"]
            for n in CROPS
        },
        "loader_speedup": {str(n): loader["1"]["median"] / loader[str(n)]["median"] for n in CROPS},
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    for title, rows in (("reading", reading), ("loader", loader)):
        for name, row in rows.items():
            print(f"{title:8} {name:12} {row['median']:7.2f} ms a clip", file=sys.stderr)


if __name__ == "__main__":
    main()
