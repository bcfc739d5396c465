"""Reading millions of narrations: seconds and memory, pickle to Annotations to samples.parquet.

    python benchmarks/narrations.py [--rows 4000000] [--json FILE]

The pickle has the layout and about the size of LaViLa's: nine thousand videos, spans of a second or
two, texts of some forty letters. Each part runs in a process of its own: seconds of the clock and
of the processor, and the largest resident size, beside that of a process which only imports the
same modules. `pickle` is Python's own reader, which runs whatever a file says, for comparison.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sized
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from matinee.measure.machine import describe

_VIDEOS = 9_000
_WORDS = ["picks up", "puts down", "turns", "opens", "a knife", "the cloth", "a pan", "the lid"]
_PARTS = ("write", "import", "pickle", "plain_pickle", "annotations", "digest_and_parquet")


def write(path: Path, rows: int) -> None:
    """A list of (video, start, end, text), in the order of the videos."""
    rng = np.random.default_rng(0)
    names = [f"{n:08x}-1b2c-4d5e-8f90-{n * 7919:012x}" for n in range(_VIDEOS)]
    video = np.sort(rng.integers(0, _VIDEOS, rows))
    start = rng.uniform(0, 3000, rows).round(3)
    words = rng.integers(0, len(_WORDS), (rows, 5))
    held = [
        (names[v], s, s + 1.5, "#C C " + " ".join([_WORDS[w] for w in said]))
        for v, s, said in zip(video.tolist(), start.tolist(), words.tolist(), strict=True)
    ]
    with path.open("wb") as file:
        pickle.dump(held, file, protocol=4)


def run(part: str, file: Path) -> dict[str, float]:
    """One part, in this process."""
    from matinee.pack.annotations.files import Request
    from matinee.pack.annotations.finder import VideoFinder
    from matinee.pack.annotations.narrations import read_narrations
    from matinee.pack.annotations.plain_pickle import read_plain_pickle
    from matinee.pack.tables import write_table

    start, cpu = time.perf_counter(), time.process_time()
    held: Sized = ()
    if part == "pickle":
        with file.open("rb") as opened:
            held = pickle.load(opened)
    elif part == "plain_pickle":
        held = read_plain_pickle(file)
    elif part in ("annotations", "digest_and_parquet"):
        found = read_narrations(Request((file,), VideoFinder(file.parent)))
        if part == "digest_and_parquet":
            start, cpu = time.perf_counter(), time.process_time()
            found.rows.digest()
            write_table(file.with_suffix(".parquet"), found.rows.table)
        held = found.samples
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "peak_mib": round(peak),
        "rows": len(held),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--part", choices=_PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part == "write":  # in a child too: a process inherits its parent's largest size
        write(args.file, args.rows)
        return
    if args.part:
        print(json.dumps(run(args.part, args.file)))
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ego4d_train.pkl"
        results = {}
        for part in _PARTS:
            command = [
                sys.executable, __file__, "--part", part, "--file", str(file),
                "--rows", str(args.rows),
            ]  # fmt: skip
            done = subprocess.run(command, check=True, capture_output=True, timeout=1800)
            if part == "write":
                continue
            results[part] = json.loads(done.stdout)
            print(part, results[part], file=sys.stderr)
        size = file.stat().st_size
    report = {
        "machine": describe("numpy", "pyarrow"),
        "rows": args.rows,
        "pickle_mb": round(size / 1e6, 1),
        "parts": results,
    }
    text = json.dumps(report, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
