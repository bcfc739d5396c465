"""Which encodings were tried for packs: bytes a frame and milliseconds a clip at equal quality.

Each variant encodes the same footage at two or more qualities; bytes and times are read off at the
PSNR (luma) that today's `small` profile has at crf 23, by interpolation, so that a cheaper picture
cannot win. SSIM is there too. Decoding is FFmpeg's decoder alone, one thread, fed the packets that
a clip needs; disposable frames are found by the reader's own header parsers. Variants take turns,
and the measure is the process's CPU time: the machine may be busy with other work.

    python benchmarks/encoding_trials.py --json results/encoding_trials.json --also VIDEO ...
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
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

from matinee.measure import machine  # noqa: E402
from matinee.media.encode import reproducible  # noqa: E402
from matinee.media.packets import PacketTable  # noqa: E402
from matinee.media.plan import packets_to_feed  # noqa: E402
from matinee.media.units import headers_of, settle  # noqa: E402

FRAMES = 128
CRFS = (20, 23, 27)
SHAPES = {"8x8": (8, 8, 8), "16x4": (16, 4, 4), "32x2": (32, 2, 2), "16x4 unaligned": (16, 4, 1)}
CLIPS = 4  # of each shape
DECODERS = {"libx264": "h264", "libx265": "hevc", "libsvtav1": "libdav1d", "libvpx": "vp8"}
Settings = tuple[str, dict[str, str], int]  # encoder, options, frames between keyframes


def x264(gop: int, spacing: int, more: str = "", **options: str) -> list[Settings]:
    """H.264 at three qualities: closed GOPs, references `spacing` apart."""
    layers = (
        f"keyint={gop}:min-keyint={gop}:scenecut=0:open-gop=0:bframes={spacing - 1}:b-adapt=0:"
        f"b-pyramid=none:{reproducible()}{':' if more else ''}{more}"
    )
    chosen = {"preset": "medium", "x264-params": layers, **options}
    return [("libx264", {**chosen, "crf": str(crf)}, gop) for crf in CRFS]


def x265(gop: int, spacing: int, **options: str) -> list[Settings]:
    layers = (
        f"keyint={gop}:min-keyint={gop}:scenecut=0:open-gop=0:bframes={spacing - 1}:b-adapt=0:"
        "b-pyramid=0:pools=none:frame-threads=1:log-level=none"
    )
    chosen = {"preset": "veryfast", "x265-params": layers, **options}
    return [("libx265", {**chosen, "crf": str(crf)}, gop) for crf in CRFS]


def native(codec: str, gop: int, spacing: int, **options: str) -> list[Settings]:
    """FFmpeg's own encoders at four fixed quantisers, with their slow decisions."""
    made = []
    for q in ("2", "4", "8", "12"):
        chosen = {"qmin": q, "qmax": q, "b": "40000000", "threads": "1", **options}
        if codec != "mjpeg":
            chosen |= {"mbd": "rd", "trellis": "1", "cmp": "satd", "subcmp": "satd"}
            chosen |= {"flags": "+cgop", "b_strategy": "0", "sc_threshold": "1000000000"}
        if spacing > 1:
            chosen |= {"bf": str(spacing - 1)}
        made.append((codec, chosen, gop))
    return made


FAST = {"tune": "fastdecode"}
VARIANTS: dict[str, list[Settings]] = {
    "small": x264(120, 4),
    "small, GOP 60": x264(60, 4),
    "small, 7 B-frames in a pyramid": [
        (
            "libx264",
            {
                "preset": "medium",
                "crf": str(crf),
                "x264-params": "keyint=120:min-keyint=120:scenecut=0:open-gop=0:bframes=7:"
                f"b-adapt=2:{reproducible()}",
            },
            120,
        )
        for crf in CRFS
    ],
    "small, preset slower": x264(120, 4, preset="slower"),
    "layered": x264(32, 4, "ref=1", **FAST),
    "layered, 3 references": x264(32, 4, **FAST),
    "layered, weightp": x264(32, 4, "ref=1:weightp=1", **FAST),
    "layered, CABAC": x264(32, 4, "ref=1:cabac=1", **FAST),
    "layered, deblocking": x264(32, 4, "ref=1:deblock=0,0", **FAST),
    "layered, whole-pixel motion": x264(32, 4, "ref=1:subme=0", **FAST),
    "layered, no partitions": x264(32, 4, "ref=1:partitions=none", **FAST),
    "layered, preset veryfast": x264(32, 4, "ref=1", preset="veryfast", **FAST),
    "layered, preset slow": x264(32, 4, "ref=1", preset="slow", **FAST),
    **{
        f"layered, stride {stride}, GOP {stride * n}": x264(stride * n, stride, "ref=1", **FAST)
        for stride in (1, 2, 4, 8)
        for n in (2, 4, 8, 16)
        if (stride, n) != (4, 8)
    },
    "layered, HEVC": x265(32, 4),
    "layered, HEVC fastdecode": x265(32, 4, **FAST),
    "layered, MPEG-4": native("mpeg4", 32, 4),
    "layered, MPEG-2": native("mpeg2video", 32, 4),
    "GOP 32, AV1 (SVT, preset 8)": [
        ("libsvtav1", {"preset": "8", "crf": str(c), "svtav1-params": "keyint=32:lp=1"}, 32)
        for c in (30, 40)
    ],
    "intra": x264(1, 1, **FAST),
    "intra, CABAC and deblocking": x264(1, 1),
    "intra, MPEG-2": native("mpeg2video", 1, 1, intra_vlc="1"),
    "intra, MPEG-2 with finer DC": native("mpeg2video", 1, 1, intra_vlc="1", dc="2"),
    "intra, MPEG-4": native("mpeg4", 1, 1),
    "intra, MJPEG": native("mjpeg", 1, 1, huffman="optimal"),
}


@dataclass
class Encoded:
    """One variant at one quality, and what was measured of it."""

    variant: str
    decoder: av.VideoCodecContext
    packets: list[bytes]
    table: PacketTable
    encode_ms: float
    psnr: float = 0.0
    ssim: float = 0.0
    ms: dict[str, list[float]] = field(default_factory=dict)

    @property
    def bytes_per_frame(self) -> float:
        return sum(map(len, self.packets)) / self.table.num_frames


def encode(variant: str, settings: Settings, frames: Sequence[np.ndarray], width: int) -> Encoded:
    codec, options, gop = settings
    height = len(frames[0]) * 2 // 3
    context = av.CodecContext.create(codec, "w")
    context.width, context.height, context.gop_size = width, height, gop
    context.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    context.time_base, context.framerate = Fraction(1, footage.FPS), Fraction(footage.FPS)
    context.thread_count, context.options = 1, options
    packets = []
    begin = time.process_time()
    for number, picture in enumerate(frames):
        # MJPEG's full range: the same numbers under another name, nothing is rescaled.
        frame = av.VideoFrame.from_ndarray(picture, context.pix_fmt)
        frame.pts, frame.time_base, frame.pict_type = number, context.time_base, 0
        packets += context.encode(frame)
    packets += context.encode(None)
    # SVT-AV1 makes the process of a root user a real-time one.
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    spent = 1000 * (time.process_time() - begin) / len(frames)
    name = DECODERS.get(codec, codec)
    decoder = av.CodecContext.create(name, "r")
    decoder.extradata, decoder.thread_count = context.extradata, 1
    decoder.width, decoder.height = width, height
    data = [bytes(packet) for packet in packets]
    headers = headers_of(name, context.extradata or b"", intra_only=gop == 1)
    read = [headers.read(payload) for payload in data] if headers else []
    table = PacketTable(
        offset=np.arange(len(data)),
        size=np.array([len(payload) for payload in data]),
        frame=np.argsort(np.argsort([packet.pts for packet in packets])),
        crc=np.zeros(len(data), np.uint32),
        key=np.array([packet.is_keyframe for packet in packets]),
        disposable=np.array(settle(read)) if gop > 1 else np.zeros(len(data), bool),
    )
    return Encoded(variant, decoder, data, table, spent)


def feed(encoded: Encoded, runs: Sequence[np.ndarray]) -> tuple[float, list[av.VideoFrame]]:
    """Milliseconds of CPU time that runs of packets take, and the frames they give."""
    ready = []
    for run in runs:
        ready.append([])
        for number in run:
            packet = av.Packet(encoded.packets[number])
            packet.pts = int(encoded.table.frame[number])
            ready[-1].append(packet)
    shown: list[av.VideoFrame] = []
    decoder = encoded.decoder
    begin = time.process_time()
    for packets in ready:
        for packet in packets:
            shown += decoder.decode(packet)
        shown += decoder.decode(None)
        decoder.flush_buffers()
    return 1000 * (time.process_time() - begin), shown


def judge(encoded: Encoded, frames: Sequence[np.ndarray], width: int) -> None:
    """Fill in the quality of luma: PSNR over every fourth frame, SSIM over every sixteenth."""
    _, shown = feed(encoded, [np.arange(len(encoded.packets))])
    assert len(shown) == len(frames), (encoded.variant, len(shown))
    height = len(frames[0]) * 2 // 3
    errors, likeness = [], []
    for frame in shown[::4]:
        plane = frame.planes[0]
        luma = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[:height, :width]
        given = frames[frame.pts][:height].astype(np.float64)
        errors.append(((luma - given) ** 2).mean())
        if len(errors) % 4 == 1:
            likeness.append(ssim(luma.astype(np.float64), given))
    encoded.psnr = float(10 * np.log10(255**2 / np.mean(errors)))
    encoded.ssim = float(np.mean(likeness))


def ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Structural similarity over windows of 8x8 (Wang et al., 2004, without the Gaussian)."""

    def mean(x: np.ndarray) -> np.ndarray:
        s = np.pad(x.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
        return (s[8:, 8:] - s[:-8, 8:] - s[8:, :-8] + s[:-8, :-8]) / 64

    at, bt = mean(a), mean(b)
    var = mean(a * a) - at * at + mean(b * b) - bt * bt
    cov = mean(a * b) - at * bt
    one, two = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    return float(
        ((2 * at * bt + one) * (2 * cov + two) / ((at**2 + bt**2 + one) * (var + two))).mean()
    )


def draw_clips() -> dict[str, list[list[int]]]:
    """The same clips for all; uniform ones take a frame from each eighth of the footage."""
    rng = np.random.default_rng(0)
    clips = {}
    for name, (count, stride, align) in SHAPES.items():
        room = FRAMES - 1 - (count - 1) * stride
        starts = (rng.integers(room // align + 1, size=CLIPS) * align).tolist()
        clips[name] = [[start + i * stride for i in range(count)] for start in starts]
    places = (np.arange(8) + rng.random((CLIPS, 8))) * FRAMES / 8
    clips["8xuniform"] = places.astype(int).tolist()
    return clips


def measure(arms: Sequence[Encoded], rounds: int) -> None:
    plans = [
        {
            name: [packets_to_feed(arm.table, clip) for clip in clips]
            for name, clips in draw_clips().items()
        }
        for arm in arms
    ]
    rng = np.random.default_rng(1)
    for _ in range(rounds):
        for i in rng.permutation(len(arms)):
            feed(arms[i], plans[i]["16x4"][0])  # warms up
            for name, runs in plans[i].items():
                spent = sum(feed(arms[i], run)[0] for run in runs) / CLIPS
                arms[i].ms.setdefault(name, []).append(spent)


def at_quality(arms: Sequence[Encoded], target: float) -> dict[str, Any]:
    """Figures of a variant at a PSNR, on the line through its two nearest qualities."""
    by_psnr = sorted(arms, key=lambda arm: arm.psnr)
    above = next((i for i, arm in enumerate(by_psnr) if arm.psnr > target), len(by_psnr) - 1)
    low, high = by_psnr[max(above - 1, 0)], by_psnr[max(above, 1)]
    if high.psnr == low.psnr:
        raise SystemExit(f"{low.variant}: its qualities are all the same")
    part = (target - low.psnr) / (high.psnr - low.psnr)

    def between(a: float, b: float) -> float:
        return round(a + part * (b - a), 3)

    logs = [np.log(arm.bytes_per_frame) for arm in (low, high)]
    return {
        "bytes_per_frame": round(float(np.exp(logs[0] + part * (logs[1] - logs[0]))), 1),
        "ssim": between(low.ssim, high.ssim),
        "encode_ms_per_frame": between(low.encode_ms, high.encode_ms),
        "ms_per_clip": {n: between(median(low.ms[n]), median(high.ms[n])) for n in low.ms},
        "psnr_of_its_encodings": [round(arm.psnr, 1) for arm in by_psnr],
    }


def pictures(path: Path, short_side: int) -> tuple[list[np.ndarray], int]:
    kept = []
    with av.open(str(path)) as container:
        for frame in islice(container.decode(video=0), FRAMES):
            shrink = short_side / min(frame.width, frame.height)
            size = [2 * round(side * shrink / 2) for side in (frame.width, frame.height)]
            kept.append(frame.reformat(*size, "yuv420p", interpolation="BICUBIC").to_ndarray())
    if len(kept) < FRAMES:
        raise SystemExit(f"{path}: {len(kept)} frames, {FRAMES} are needed")
    return kept, kept[0].shape[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, required=True, help="result file")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="more footage")
    parser.add_argument("--short-side", type=int, default=288)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    found: dict[str, Any] = {}
    for path in (footage.clip_paths()[0], *args.also):
        frames, width = pictures(path, args.short_side)
        arms = []
        for variant, qualities in VARIANTS.items():
            for settings in qualities:
                arms.append(encode(variant, settings, frames, width))
                judge(arms[-1], frames, width)
            print(f"{path.stem}: {variant}", file=sys.stderr)
        measure(arms, args.rounds)
        target = [arm.psnr for arm in arms if arm.variant == "small"][CRFS.index(23)]
        found[path.stem] = {
            "psnr": round(target, 2),
            "variants": {
                variant: at_quality([arm for arm in arms if arm.variant == variant], target)
                for variant in VARIANTS
            },
        }
    result = {
        "benchmark": "encoding_trials",
        "measure": f"process CPU time, one thread, medians of {args.rounds} rounds; at equal PSNR",
        "short_side": args.short_side,
        "machine": machine.describe("matinee", "av"),
        "footage": found,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    for name, content in found.items():
        print(f"{name} at {content['psnr']} dB")
        for variant, row in content["variants"].items():
            times = "".join(f"{ms:8.2f}" for ms in row["ms_per_clip"].values())
            print(f"{variant:36}{row['bytes_per_frame'] / 1000:7.2f} KB {times}  {row['ssim']}")


if __name__ == "__main__":
    main()
