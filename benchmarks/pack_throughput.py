"""Seconds of video packed per second: `matinee pack` and bare libx264 on the same two cores.

Two sources of real footage: one long video, which is cut into segments, and many short ones. The
bare arm decodes, scales and encodes through PyAV with the same options in two processes, each with
its half of the frames (of the long video: a file that holds half of it), and does nothing else: no
chunks, tables, checks, or files but its own. Arms take turns; medians of the rounds are reported,
of the wall clock and of the processor time of all processes, which a busy machine disturbs less.

    python benchmarks/pack_throughput.py --json benchmarks/results/pack_throughput.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import av
import footage

from matinee.measure import machine
from matinee.pack.profiles import make_profile

WORKERS = 2
SHORT_SIDE = 288

BARE = """
import json, sys
from fractions import Fraction
from itertools import pairwise
import av

options, side, *paths = json.loads(sys.argv[1])
for path, target in paths:
    with av.open(path) as source, av.open(target, "w", format="mp4") as out:
        stream = source.streams.video[0]
        stream.codec_context.thread_count = 1
        width, height = stream.width * side // stream.height // 2 * 2, side
        encoded = out.add_stream("libx264", rate=stream.average_rate, options=options)
        encoded.width, encoded.height, encoded.pix_fmt = width, height, "yuv420p"
        encoded.codec_context.thread_count = 1
        graph = av.filter.Graph()
        graph.threads = 1
        chain = [
            graph.add_buffer(template=stream),
            graph.add("scale", f"{width}:{height}:flags=bicubic"),
            graph.add("format", "yuv420p"),
            graph.add("buffersink"),
        ]
        for a, b in pairwise(chain):
            a.link_to(b)
        graph.configure()
        for number, frame in enumerate(source.decode(stream)):
            graph.push(frame)
            scaled = graph.pull()
            scaled.pts, scaled.time_base, scaled.pict_type = number, 1 / stream.average_rate, 0
            out.mux(encoded.encode(scaled))
        out.mux(encoded.encode(None))
"""


def repeat(path: Path, target: Path, times: int) -> None:
    """A file that plays `path` so many times, its packets copied."""
    with av.open(str(target), "w") as out:
        copied, shift = None, 0
        for _ in range(times):
            with av.open(str(path)) as source:
                stream = source.streams.video[0]
                copied = copied or out.add_stream_from_template(stream)
                length = stream.duration
                for packet in source.demux(stream):
                    if packet.dts is None:
                        continue
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    packet.stream = copied
                    out.mux(packet)
            shift += length


def pack(source: Path, out: Path, profile: str) -> float:
    """`matinee pack`; returns the realtime factor it reports."""
    shutil.rmtree(out, ignore_errors=True)
    report = out.with_suffix(".json")
    subprocess.run(
        [
            sys.executable, "-m", "matinee", "pack", str(source), "--out", str(out),
            "--workers", str(WORKERS), "--profile", profile, "--short-side", str(SHORT_SIDE),
            "--json", str(report), "--val-fraction", "0",
        ],
        check=True, stdout=subprocess.DEVNULL, cwd=out.parent,
    )  # fmt: skip
    return float(json.loads(report.read_text())["realtime_factor"])


def bare(paths: list[Path], out: Path, profile: str, seconds: float) -> float:
    """Two processes of bare libx264; the realtime factor."""
    out.mkdir(exist_ok=True)
    options = make_profile(profile, short_side=SHORT_SIDE).encoder().x264()
    begun = time.perf_counter()
    running = []
    for worker in range(WORKERS):
        mine = [(str(p), str(out / f"{worker}.mp4")) for p in paths[worker::WORKERS]]
        content = json.dumps([options, SHORT_SIDE, *mine])
        running.append(subprocess.Popen([sys.executable, "-c", BARE, content]))
    for process in running:
        if process.wait():
            raise SystemExit("bare libx264 failed")
    return seconds / (time.perf_counter() - begun)


def cpu_seconds() -> float:
    """Processor time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start_up() -> float:
    """Processor seconds of starting `matinee pack` itself, which the realtime factor leaves out."""
    begun = cpu_seconds()
    subprocess.run(
        [sys.executable, "-m", "matinee", "pack", "--help"], check=True, capture_output=True
    )
    return cpu_seconds() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", default="layered")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=int, default=4, help="of the long video, 2 or more")
    parser.add_argument("--clips", type=int, default=24, help="short videos of 10 s")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:WORKERS]
    os.sched_setaffinity(0, cores)
    with tempfile.TemporaryDirectory(prefix="pack_throughput") as folder:
        root = Path(folder)
        piece, clip = root / "piece.mp4", root / "clip.mp4"
        footage.write_x264(piece, width=1280, height=720, seconds=30)
        footage.write_x264(clip, width=640, height=360, seconds=10)
        for name in ("long/a", "short/a"):
            (root / name).mkdir(parents=True)
        repeat(piece, root / "long" / "a" / "long.mp4", 2 * args.minutes)
        halves = [root / "half0.mp4", root / "half1.mp4"]
        for half in halves:
            repeat(piece, half, args.minutes)
        shorts = [root / "short" / "a" / f"{n}.mp4" for n in range(args.clips)]
        for path in shorts:
            shutil.copyfile(clip, path)
        base = start_up()
        sources = {
            "one long video": (root / "long", halves, 60.0 * args.minutes),
            "many short videos": (root / "short", shorts, 10.0 * args.clips),
        }
        factors: dict[str, dict[str, list[float]]] = {}
        for _ in range(args.rounds):
            for name, (source, paths, seconds) in sources.items():
                kept = factors.setdefault(name, {})
                for arm in ("matinee", "bare"):
                    begun = cpu_seconds()
                    if arm == "matinee":
                        factor = pack(source, root / "out", args.profile)
                        begun += base
                    else:
                        factor = bare(paths, root / "bare", args.profile, seconds)
                    kept.setdefault(arm, []).append(factor)
                    kept.setdefault(f"{arm} cpu", []).append(cpu_seconds() - begun)
                    print(f"{name}, {arm}: {factor:.2f}x real time", flush=True)
    result: dict[str, Any] = {
        "what": f"seconds of video per second, {WORKERS} workers on {WORKERS} cores, profile "
        f"{args.profile}, short side {SHORT_SIDE}; medians of {args.rounds} rounds",
        "machine": machine.describe("av", "numpy"),
        "load_average": os.getloadavg()[0],
        "sources": {
            "one long video": f"{args.minutes} min of 1280x720, x264 defaults",
            "many short videos": f"{args.clips} of 10 s of 640x360, x264 defaults",
        },
        "results": {
            name: {
                "realtime_factor": round(median(kept["matinee"]), 2),
                "bare_realtime_factor": round(median(kept["bare"]), 2),
                "share_of_bare": round(
                    median(m / b for m, b in zip(kept["matinee"], kept["bare"], strict=True)), 3
                ),
                "cpu_s": round(median(kept["matinee cpu"]), 1),
                "bare_cpu_s": round(median(kept["bare cpu"]), 1),
                "bare_cpu_share": round(
                    median(
                        b / m for m, b in zip(kept["matinee cpu"], kept["bare cpu"], strict=True)
                    ),
                    3,
                ),
                "rounds": {arm: [round(v, 2) for v in kept[arm]] for arm in ("matinee", "bare")},
            }
            for name, kept in factors.items()
        },
    }
    text = json.dumps(result, indent=1) + "\n"
    print(text, end="")
    if args.json:
        args.json.write_text(text)


if __name__ == "__main__":
    main()
