"""Opening packs of a million chunks: seconds, memory, and what finding a clip costs.

Writes the tables of two packs of 1 M chunks and 1 M samples (10,000 videos of 100 chunks; 1 M
videos of one chunk) with shards that are holes in the file system, then measures each in processes
of its own:

    python benchmarks/pack_scale.py --json benchmarks/results/pack_scale.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent))

from matinee.measure import machine
from matinee.pack.format import CHUNKS, CODECS, FILES, MANIFEST, SAMPLES, VERSION

FRAMES, FPS = 450, 30  # of a chunk: the default of 15 s
SIZE, TABLE_SIZE = FRAMES * 2800, 9632  # bytes of its MP4 and of its packet table
STEP = -(-SIZE // 512) * 512 + -(-TABLE_SIZE // 512) * 512 + 1024  # in a tar
PER_SHARD = (1 << 30) // STEP
CLIP = 16, 4  # frames, stride
WORDS = ("the person picks takes puts opens closes washes a cup knife door pan of with and").split()  # noqa: SIM905


def synthesise(out: Path, videos: int, chunks_each: int, samples: int) -> None:
    """The tables of a pack, and sparse shards of the right sizes."""
    count = videos * chunks_each
    rng = np.random.default_rng(0)
    names = np.array([f"kitchens/P{i % 97:02d}/video_{i:07d}.mp4" for i in range(videos)])
    chunk = np.arange(count)
    within, shard, place = chunk % chunks_each, chunk // PER_SHARD, chunk % PER_SHARD
    offset = place * STEP + 512
    shards = int(shard.max()) + 1
    (out / "shards").mkdir(parents=True)
    size = PER_SHARD * STEP + 1024
    for number in range(shards):
        with (out / "shards" / f"{number:06d}.tar").open("wb") as file:
            file.truncate(size)
    columns = {
        "video": pa.array(names).take(pa.array(chunk // chunks_each)),
        "start_frame": within * FRAMES,
        "start_s": within * FRAMES / FPS,
        "frames": np.full(count, FRAMES),
        "fps_num": np.full(count, FPS),
        "fps_den": np.full(count, 1),
        "codec": np.zeros(count, np.int32),
        "file": shard,
        "offset": offset,
        "size": rng.integers(SIZE // 2, SIZE, count),
        "table_file": shard,
        "table_offset": offset + STEP - 512 - -(-TABLE_SIZE // 512) * 512,
        "table_size": np.full(count, TABLE_SIZE),
    }
    write(out / "chunks.parquet", columns, CHUNKS)
    video = np.sort(rng.integers(0, videos, samples)) if chunks_each > 1 else np.arange(samples)
    start = rng.uniform(0, chunks_each * FRAMES / FPS - 5, samples)
    verbs = pa.array([f"{a} {b}" for a in WORDS for b in WORDS])
    texts = [" ".join(np.take(WORDS, row)) for row in rng.integers(0, len(WORDS), (samples, 8))]
    columns = {
        "sample": pa.array([f"narration_{i:07d}" for i in range(samples)]),
        "video": pa.array(names).take(pa.array(video)),
        "start_s": start,
        "end_s": start + rng.uniform(1, 5, samples),
        "split": pa.array(["train", "val", "test"]).take(pa.array(rng.integers(0, 3, samples))),
        "label": verbs.take(pa.array(rng.integers(0, len(verbs), samples))),
        "text": pa.array(texts),
    }
    write(out / "samples.parquet", columns, SAMPLES)
    codec = {"codec": ["h264"], "width": [512], "height": [288], "pix_fmt": ["yuv420p"],
             "matrix": ["bt709"], "full_range": [False], "extradata": [b""]}  # fmt: skip
    write(out / "codecs.parquet", codec, CODECS)
    paths = [f"shards/{number:06d}.tar" for number in range(shards)]
    files = {"path": paths, "size": [size] * shards, "mtime_ns": [0] * shards}
    write(out / "files.parquet", files, FILES)
    counts = dict.fromkeys(("bytes", "seconds_of_video", "refused", "ignored"), 0)
    manifest = {
        "format": "matinee pack", "version": VERSION, "profile": None,
        "classes": sorted(verbs.to_pylist()), "source_digest": None,
        "report": {"videos": videos, "samples": samples, "chunks": count, **counts},
    }  # fmt: skip
    (out / MANIFEST).write_text(json.dumps(manifest))


def write(path: Path, columns: dict[str, Any], schema: pa.Schema) -> None:
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in schema]
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path, compression="zstd")


def memory() -> dict[str, int]:
    """Bytes of this process in memory: its own, and of mapped files."""
    rows = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {row[0][:-1]: 1024 * int(row[1]) for row in rows if row[0] in ("RssAnon:", "RssFile:")}


def grown(before: dict[str, int]) -> dict[str, float]:
    now = memory()
    found = {f"{name}_mb": (now[name] - before[name]) / 1e6 for name in before}
    return {**found, "resident_mb": sum(found.values())}


def inspect(path: Path, finds: int) -> dict[str, Any]:
    """Measure one pack, in this process."""
    from matinee.pack.reading.reader import Pack

    small = Pack(path.with_name("small"))  # what a first use loads of the libraries is no index
    small.locate(small.info(0).video, [0])
    before = memory()
    begin, cpu = time.perf_counter(), time.process_time()
    pack = Pack(path)
    opened = {
        "open_s": time.perf_counter() - begin, "open_cpu_s": time.process_time() - cpu,
        **grown(before),
    }  # fmt: skip
    begin = time.perf_counter()
    pack.info(0)
    first = {"first_info_s": time.perf_counter() - begin, **grown(before)}
    rows = np.random.default_rng(1).integers(0, len(pack), finds).tolist()
    frames, stride = CLIP
    spent = {"info": 0.0, "locate": 0.0, "captions": 0.0}
    begin = time.perf_counter()
    pack.captions(0)
    first_caption = time.perf_counter() - begin
    for row in rows:
        begin = time.perf_counter()
        info = pack.info(row)
        middle = time.perf_counter()
        some = [info.first_frame + i * stride % info.num_frames for i in range(frames)]
        planned = time.perf_counter()
        pack.locate(info.video, some)
        located = time.perf_counter()
        pack.captions(row)
        spent["captions"] += time.perf_counter() - located
        spent["info"] += middle - begin
        spent["locate"] += located - planned
    found = {f"{name}_us": 1e6 * seconds / finds for name, seconds in spent.items()}
    begin = time.perf_counter()
    chosen = len(pack.select("train"))
    return {
        "opened": opened, "first_info": first, "first_caption_s": first_caption, **found,
        "after_all": grown(before), "select_s": time.perf_counter() - begin, "selected": chosen,
    }  # fmt: skip


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the figures of several runs."""
    return {
        name: middle([run[name] for run in runs])
        if isinstance(value, dict)
        else median(run[name] for run in runs)
        for name, value in runs[0].items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="result file")
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--finds", type=int, default=20_000, help="random rows looked up")
    parser.add_argument("--keep", type=Path, help="folder for the packs, to be used again")
    parser.add_argument("--inspect", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inspect:
        print(json.dumps(inspect(args.inspect, args.finds)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        if not (folder / "small" / MANIFEST).exists():
            synthesise(folder / "small", 10, 10, 100)
        shapes = {"long_videos": (args.chunks // 100, 100), "short_videos": (args.chunks, 1)}
        for name, (videos, each) in shapes.items():
            if not (folder / name / MANIFEST).exists():
                print(f"writing the tables of {name}", file=sys.stderr)
                synthesise(folder / name, videos, each, args.chunks)
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in shapes}
        for _ in range(args.runs):
            for name in shapes:
                command = [sys.executable, __file__, "--inspect", str(folder / name)]
                command += ["--finds", str(args.finds)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                runs[name].append(json.loads(done.stdout))
        result = {
            "benchmark": "pack_scale",
            "machine": machine.describe("matinee", "numpy", "pyarrow"),
            "load_average": os.getloadavg()[0],  # of other work too: compare open_cpu_s then
            "chunks": args.chunks,
            "samples": args.chunks,
            "runs": args.runs,
            "bytes_of_tables": {
                name: sum(file.stat().st_size for file in (folder / name).glob("*.parquet"))
                for name in shapes
            },
            "median": {name: middle(found) for name, found in runs.items()},
        }
    text = json.dumps(result, indent=1)
    print(text)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
