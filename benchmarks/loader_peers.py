"""Milliseconds for a clip of 16 frames at stride 4 and 224², one thread: matinee and its peers.

Three sources made of the same real footage: a 1080p file as x264 encodes by default; a 15 s chunk
at 288p with x264's defaults; a matinee pack. Every reader crops the same share of the picture at a
random place and scales to 224². All readers take turns of a few clips in one process pinned to one
core, so a noisy machine disturbs them alike; medians are reported. A peer opens the file for each
clip, as it must when a data set has more files than can stay open; `kept_open` is the same with the
reader kept, to show what opening costs (torchcodec then keeps the first clip's size of crop), and
`mapped` gives torchcodec the table of frames that it else makes at each opening.

Then clips a second from the pack with one and two workers on two cores: matinee's threads and
processes as its loader uses them, and every peer in one and two threads.

    python benchmarks/loader_peers.py --json benchmarks/results/loader_peers.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import footage  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from matinee.data.backends import start_backend  # noqa: E402
from matinee.data.decode_job import ClipJob  # noqa: E402
from matinee.data.decoders import Decoders  # noqa: E402
from matinee.measure import machine  # noqa: E402
from matinee.media.decode import Box, frame_bytes  # noqa: E402
from matinee.media.packets import PacketTable  # noqa: E402
from matinee.media.plan import packets_to_feed  # noqa: E402
from matinee.pack.annotations import Annotations, Sample, VideoFile  # noqa: E402
from matinee.pack.profiles import make_profile  # noqa: E402
from matinee.pack.reading.clip import ClipReader  # noqa: E402
from matinee.pack.reading.reader import Pack  # noqa: E402
from matinee.pack.writing.index import index_videos  # noqa: E402
from matinee.pack.writing.writer import write_pack  # noqa: E402

FRAMES, STRIDE, SIZE = 16, 4, 224
TURN = 6  # clips a reader reads before the next has its turn


@dataclass(frozen=True)
class Clip:
    """One clip: frames of `file` (numbers within it), and of `pack` (numbers within its video)."""

    file: Path
    frames: list[int]
    pack_frames: list[int]
    box: Box


Read = Callable[[Clip], np.ndarray | None]


# --- the readers ------------------------------------------------------------------------------


def matinee(pack: Pack, pixels: str) -> Read:
    reader = ClipReader(pack.formats)
    out = np.empty((FRAMES, frame_bytes((SIZE, SIZE), pixels)), np.uint8)  # type: ignore[arg-type]
    video = pack.info(0).video

    def read(clip: Clip) -> np.ndarray | None:
        parts = pack.locate(video, clip.pack_frames)
        reader.read(parts, out, box=clip.box, size=(SIZE, SIZE), pixels=pixels)  # type: ignore[arg-type]
        return out.reshape(FRAMES, SIZE, SIZE, 3) if pixels == "rgb" else None

    return read


def packet_of(data: bytes, table: PacketTable, number: int) -> Any:
    """A packet with the padding that decoders read into."""
    import av

    packet = av.Packet(int(table.size[number]))
    packet.update(data[table.offset[number] : table.offset[number] + table.size[number]])
    return packet


def decode_only(pack: Pack) -> Read:
    """The floor: the planned packets through FFmpeg's decoder, frames dropped."""
    import av

    fmt = pack.formats[0]
    decoder = av.CodecContext.create(fmt.codec, "r")
    decoder.extradata = fmt.extradata
    decoder.thread_count = 1
    tables = ClipReader(pack.formats)
    video = pack.info(0).video

    def read(clip: Clip) -> None:
        for part in pack.locate(video, clip.pack_frames):
            table = tables.table(part.chunk)
            with Path(part.chunk.file).open("rb") as file:
                data = os.pread(file.fileno(), part.chunk.size, part.chunk.offset)
            packets = [
                [packet_of(data, table, p) for p in run]
                for run in packets_to_feed(table, list(part.frames))
            ]
            begin = time.perf_counter()
            for run in packets:
                for packet in run:
                    decoder.decode(packet)
                decoder.decode(None)
                decoder.flush_buffers()
            read.spent += time.perf_counter() - begin  # type: ignore[attr-defined]

    read.spent = 0.0  # type: ignore[attr-defined]
    return read


def torchcodec(seek_mode: str, keep: bool) -> Read:
    from torchcodec.decoders import VideoDecoder
    from torchcodec.transforms import RandomCrop, Resize

    kept: dict[Path, Any] = {}

    def read(clip: Clip) -> np.ndarray:
        decoder = kept.get(clip.file)
        if decoder is None:
            decoder = VideoDecoder(
                str(clip.file), seek_mode=seek_mode, num_ffmpeg_threads=1, dimension_order="NHWC",
                transforms=[RandomCrop((clip.box.height, clip.box.width)), Resize((SIZE, SIZE))],
            )  # fmt: skip
            if keep:  # its crop is then the first clip's: the same work
                kept[clip.file] = decoder
        return decoder.get_frames_at(clip.frames).data.numpy()

    return read


def torchcodec_mapped() -> Read:
    """Opening without a scan: the times of all frames are known beforehand."""
    import av
    from torchcodec.decoders import VideoDecoder
    from torchcodec.transforms import RandomCrop, Resize

    mappings: dict[Path, str] = {}

    def mapping(path: Path) -> str:
        if path not in mappings:
            with av.open(str(path)) as file:
                packets = [p for p in file.demux(video=0) if p.size]
            rows = [
                {"pts": p.pts, "duration": p.duration, "key_frame": int(p.is_keyframe)}
                for p in sorted(packets, key=lambda p: p.pts or 0)
            ]
            mappings[path] = json.dumps({"frames": rows})
        return mappings[path]

    def read(clip: Clip) -> np.ndarray:
        decoder = VideoDecoder(
            str(clip.file), custom_frame_mappings=mapping(clip.file), num_ffmpeg_threads=1,
            dimension_order="NHWC",
            transforms=[RandomCrop((clip.box.height, clip.box.width)), Resize((SIZE, SIZE))],
        )  # fmt: skip
        return decoder.get_frames_at(clip.frames).data.numpy()

    return read


def decord(keep: bool) -> Read:
    import decord as library

    kept: dict[Path, Any] = {}

    def read(clip: Clip) -> np.ndarray:
        reader = kept.get(clip.file)
        if reader is None:
            reader = library.VideoReader(str(clip.file), num_threads=1)
            if keep:
                kept[clip.file] = reader
        whole = torch.from_numpy(reader.get_batch(clip.frames).asnumpy())
        box = clip.box
        part = whole[:, box.y : box.y + box.height, box.x : box.x + box.width]
        scaled = torch.nn.functional.interpolate(
            part.permute(0, 3, 1, 2), (SIZE, SIZE), mode="bilinear", antialias=True
        )
        return scaled.permute(0, 2, 3, 1).numpy()

    return read


def spdl() -> Read:
    import spdl.io as library

    def read(clip: Clip) -> np.ndarray:
        begin, end = clip.frames[0] / footage.FPS, (clip.frames[-1] + 1) / footage.FPS
        box = clip.box
        filters = (
            f"trim=start={begin - 0.25 / footage.FPS}:end={end - 0.25 / footage.FPS},"
            f"select='not(mod(n,{STRIDE}))',"
            f"crop={box.width}:{box.height}:{box.x}:{box.y},"
            f"scale={SIZE}:{SIZE}:flags=bilinear,format=pix_fmts=rgb24"
        )
        packets = library.demux_video(str(clip.file), timestamp=(begin, end))
        frames = library.decode_packets(packets, filter_desc=filters)
        return library.to_numpy(library.convert_frames(frames))

    return read


def peers() -> tuple[dict[str, Read], list[str]]:
    """Readers of the peers that are here, and the names of those that are not."""
    found, absent = peer_makers()
    return {name: make() for name, make in found.items()}, absent


def peer_makers() -> tuple[dict[str, Callable[[], Read]], list[str]]:
    """What makes them."""
    makers: dict[str, Callable[[], Read]] = {
        "torchcodec": lambda: torchcodec("exact", keep=False),
        "torchcodec_approximate": lambda: torchcodec("approximate", keep=False),
        "torchcodec_mapped": torchcodec_mapped,
        "torchcodec_kept_open": lambda: torchcodec("exact", keep=True),
        "decord": lambda: decord(keep=False),
        "decord_kept_open": lambda: decord(keep=True),
        "spdl": spdl,
    }
    found: dict[str, Callable[[], Read]] = {}
    absent: list[str] = []
    for name, make in makers.items():
        try:
            make()
            found[name] = make
        except (ImportError, OSError, RuntimeError) as error:
            absent.append(f"{name}: {str(error).splitlines()[0]}")
    return found, absent


# --- the sources ------------------------------------------------------------------------------


def one(path: Path) -> Annotations:
    return Annotations((VideoFile(path.name, path),), (Sample(path.name, path.name),))


def prepare(folder: Path, seconds: int) -> dict[str, tuple[Pack, list[tuple[Path, int, int]]]]:
    """For each source a pack to read it with, and its files: (path, first frame, frames)."""
    original = folder / "original_1080p.mp4"
    if not original.exists():
        print(f"encoding {seconds} s of 1080p footage (minutes, once)", file=sys.stderr)
        footage.write_x264(original, width=1920, height=1080, seconds=seconds)
    chunk = folder / "chunk_288p.mp4"
    if not chunk.exists():
        footage.write_x264(chunk, width=512, height=288, seconds=15)
    for path in (original, chunk):
        index_videos(folder / f"{path.stem}.index", one(path), overwrite=True)
    write_pack(folder / "layered.pack", one(original), make_profile("layered", stride=STRIDE))
    pack = Pack(folder / "layered.pack")
    chunks = []
    with tarfile.open(folder / "layered.pack" / "shards" / "000000.tar") as tar:
        tar.extractall(folder / "chunks", filter="data")
    start = 0
    for row in sorted((folder / "chunks" / original.name).glob("*.mp4")):
        count = pack.locate(original.name, [start])[0].chunk
        frames = ClipReader(pack.formats).table(count).num_frames
        chunks.append((row, start, frames))
        start += frames
    return {
        "original_1080p": (Pack(folder / "original_1080p.index"), [(original, 0, seconds * 30)]),
        "chunk_288p_x264_default": (Pack(folder / "chunk_288p.index"), [(chunk, 0, 15 * 30)]),
        "pack": (pack, chunks),
    }


def draw_clips(files: list[tuple[Path, int, int]], pack: Pack, count: int) -> list[Clip]:
    """Random clips; starts are multiples of the stride, boxes are a random-resized crop's."""
    from matinee.data.crops import random_resized_box

    rng = np.random.default_rng(0)
    info = pack.info(0)
    files = [file for file in files if file[2] >= FRAMES * STRIDE]
    clips = []
    for _ in range(count):
        path, first, frames = files[rng.integers(len(files))]
        start = int(rng.integers((frames - FRAMES * STRIDE) // STRIDE + 1)) * STRIDE
        numbers = [start + i * STRIDE for i in range(FRAMES)]
        box = random_resized_box((info.width, info.height), rng, (0.5, 1.0), (3 / 4, 4 / 3))
        clips.append(Clip(path, numbers, [first + n for n in numbers], box))
    return clips


def measure(make: Callable[[], dict[str, Read]], clips: list[Clip]) -> dict[str, list[float]]:
    """Milliseconds of each clip by each reader, in turns of `TURN` clips.

    The first clip of a turn warms up and is not counted: readers evict each other's code and data
    from the processor's caches, which no training run does. The order of readers is drawn anew for
    each turn.
    """
    readers = make()
    spent: dict[str, list[float]] = {name: [] for name in readers}
    names, rng = list(readers), np.random.default_rng(1)
    for first in range(0, len(clips), TURN):
        turn = clips[first : first + TURN]
        for name in (names[i] for i in rng.permutation(len(names))):
            read = readers[name]
            for clip in (turn[0], *turn):
                before = getattr(read, "spent", None)
                begin = time.perf_counter()
                read(clip)
                seconds = time.perf_counter() - begin
                if before is not None:  # the floor counts decoding alone
                    seconds = read.spent - before  # type: ignore[attr-defined]
                spent[name].append(1000 * seconds)
            del spent[name][-len(turn) - 1]
    return spent


# --- workers ----------------------------------------------------------------------------------


def by_backend(pack: Pack, decoders: Decoders) -> Callable[[list[Clip]], None]:
    """Clips through the loader's own workers."""
    backend = start_backend(
        decoders, pack.formats, (1, 8, FRAMES), (SIZE, SIZE), torch.device("cpu")
    )
    video = pack.info(0).video

    def read_all(clips: list[Clip]) -> None:
        for number, clip in enumerate(clips):
            parts = pack.locate(video, clip.pack_frames)
            job = ClipJob(0, parts, ((number % 8, clip.box),), (SIZE, SIZE))
            backend.submit([(number, job)])
        left = len(clips)
        while left:
            for _, failure in backend.wait():
                assert failure is None, failure
                left -= 1

    return read_all


def by_threads(make: Callable[[], Read], threads: int) -> Callable[[list[Clip]], None]:
    """Clips through a peer, a reader a thread."""
    pool, local = ThreadPoolExecutor(threads), threading.local()

    def read(clip: Clip) -> None:
        if not hasattr(local, "read"):
            local.read = make()
        local.read(clip)

    return lambda clips: list(pool.map(read, clips)) and None  # type: ignore[func-returns-value]


def throughput(pack: Pack, clips: list[Clip], rounds: int) -> dict[str, list[float]]:
    """Clips a second of each arm in each round, in an order drawn anew."""
    arms: dict[str, Callable[[list[Clip]], None]] = {}
    for count in (1, 2):
        arms[f"matinee_threads_{count}"] = by_backend(pack, Decoders(0, count, "measured"))
        arms[f"matinee_processes_{count}"] = by_backend(pack, Decoders(count, 1, "measured"))
    arms["matinee_process_of_2_threads"] = by_backend(pack, Decoders(1, 2, "measured"))
    makers, _ = peer_makers()
    for name, make in makers.items():
        for count in (1, 2):
            arms[f"{name}_threads_{count}"] = by_threads(make, count)
    rates: dict[str, list[float]] = {name: [] for name in arms}
    rng = np.random.default_rng(2)
    for _ in range(rounds):
        for name in (list(arms)[i] for i in rng.permutation(len(arms))):
            arms[name](clips[:4])  # warm
            begin = time.perf_counter()
            arms[name](clips)
            rates[name].append(len(clips) / (time.perf_counter() - begin))
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rates


def check_same(readers: dict[str, Read], clip: Clip) -> dict[str, float]:
    """Mean absolute difference of each peer's frames to ours, full picture, 0–255."""
    ours = readers["matinee_rgb"](clip)
    assert ours is not None
    ours = ours.astype(np.float32)
    differences = {}
    for name, read in readers.items():
        other = read(clip)
        if other is not None and not name.startswith("matinee"):
            assert other.shape == ours.shape, (name, other.shape)
            differences[name] = float(np.abs(other.astype(np.float32) - ours).mean())
    return differences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, required=True, help="result file")
    parser.add_argument("--clips", type=int, default=60, help="clips a source (a fifth for 1080p)")
    parser.add_argument("--rounds", type=int, default=10, help="of the workers' turns")
    parser.add_argument("--seconds", type=int, default=60, help="length of the 1080p footage")
    parser.add_argument("--keep", type=Path, help="folder for the footage, to be used again")
    args = parser.parse_args()
    torch.set_num_threads(1)
    _, absent = peers()
    described = machine.describe("matinee", "av", "torch", "torchcodec", "decord", "spdl-io")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        sources = prepare(folder, args.seconds)
        pack, files = sources["pack"]
        rates = throughput(pack, draw_clips(files, pack, 24), args.rounds)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        spent: dict[str, dict[str, list[float]]] = {}
        difference: dict[str, dict[str, float]] = {}
        for source, (pack, files) in sources.items():

            def make(pack: Pack = pack) -> dict[str, Read]:
                return {
                    "matinee_i420": matinee(pack, "i420"),
                    "matinee_rgb": matinee(pack, "rgb"),
                    "decode_only": decode_only(pack),
                    **peers()[0],
                }

            clips = draw_clips(files, pack, args.clips // (5 if "1080p" in source else 1))
            whole = Box(0, 0, pack.info(0).width // 2 * 2, pack.info(0).height // 2 * 2)
            same = Clip(clips[0].file, clips[0].frames, clips[0].pack_frames, whole)
            difference[source] = check_same(make(), same)
            spent[source] = measure(make, clips)
            print(f"{source}: {len(clips)} clips", file=sys.stderr)
    ms = {s: {name: median(times) for name, times in row.items()} for s, row in spent.items()}
    spread = {
        s: {n: [float(np.percentile(t, q)) for q in (25, 75)] for n, t in row.items()}
        for s, row in spent.items()
    }
    result = {
        "benchmark": "loader_peers",
        "clip": {"frames": FRAMES, "stride": STRIDE, "size": SIZE, "threads": 1},
        "machine": described,
        "absent": absent,
        "ms_per_clip": ms,
        "quartiles": spread,
        "floor_ms": ms["pack"]["decode_only"],
        "mean_difference_to_ours": difference,
        "ratios": {**ratios(ms), **worker_ratios(rates)},
        "clips_per_second": {name: median(values) for name, values in rates.items()},
        "clips_per_second_quartiles": {
            name: [float(np.percentile(values, q)) for q in (25, 75)]
            for name, values in rates.items()
        },
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    show(ms, result["ratios"], absent)
    for name, value in result["clips_per_second"].items():  # type: ignore[attr-defined]
        print(f"{name.ljust(40)}{value:8.1f} clips/s")


def ratios(ms: dict[str, dict[str, float]]) -> dict[str, float]:
    """Our pack against the floor, and the fastest peer on each source against our pack."""
    ours = ms["pack"]["matinee_i420"]
    found = {
        "i420_over_floor": ours / ms["pack"]["decode_only"],
        "rgb_over_floor": ms["pack"]["matinee_rgb"] / ms["pack"]["decode_only"],
    }
    for source, row in ms.items():
        opening = [t for n, t in row.items() if _is_peer(n) and not n.endswith("kept_open")]
        kept = [t for n, t in row.items() if _is_peer(n)]
        if opening:
            found[f"fastest_peer_on_{source}_over_our_pack"] = min(opening) / ours
            found[f"fastest_peer_on_{source}_kept_open_over_our_pack"] = min(kept) / ours
    return found


def worker_ratios(rates: dict[str, list[float]]) -> dict[str, float]:
    """Two workers against one (medians of the rounds' own ratios), and ours against the peers'."""

    def over(a: str, b: str) -> float:
        return median(x / y for x, y in zip(rates[a], rates[b], strict=True))

    peers_of = [n for n in rates if _is_peer(n) and n.endswith("_2")]
    best = max(peers_of, key=lambda name: median(rates[name]), default=None)
    found = {
        "two_threads_over_one": over("matinee_threads_2", "matinee_threads_1"),
        "two_processes_over_one": over("matinee_processes_2", "matinee_processes_1"),
        "process_of_two_threads_over_process": over(
            "matinee_process_of_2_threads", "matinee_processes_1"
        ),
    }
    if best is not None:
        found[f"two_processes_over_fastest_peer_{best}"] = over("matinee_processes_2", best)
    return found


def _is_peer(name: str) -> bool:
    return not name.startswith("matinee") and name != "decode_only"


def show(ms: dict[str, dict[str, float]], found: Any, absent: list[str]) -> None:
    names = list(next(iter(ms.values())))
    print("ms per clip".ljust(26) + "".join(source.rjust(26) for source in ms))
    for name in names:
        print(name.ljust(26) + "".join(f"{ms[s][name]:26.1f}" for s in ms))
    for name, value in found.items():
        print(f"{name}: {value:.2f}")
    for line in absent:
        print(f"absent: {line}")


if __name__ == "__main__":
    main()
