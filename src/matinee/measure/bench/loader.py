"""Clips a second from a pack: one thread beside other readers, and by number of decoders."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import local
from typing import Any

import numpy as np
import torch

from matinee.data.backends import start_backend
from matinee.data.decode_cost import DecodeCost
from matinee.data.decode_job import ClipJob
from matinee.data.decoders import Decoders
from matinee.data.loader import ClipLoader
from matinee.errors import ConfigError, MatineeError
from matinee.measure.arms import Spread, Turns, take_turns
from matinee.measure.bench.loader_clips import (
    Clip,
    clip_spec,
    draw_clips,
    parse_shape,
    write_files,
)
from matinee.measure.bench.loader_readers import (
    DecodeOnly,
    Read,
    pack_reader,
    peers,
    usable_peers,
)
from matinee.measure.process import wait
from matinee.measure.result import Result
from matinee.media.decode import frame_bytes
from matinee.pack.mixture import shown_path
from matinee.pack.open import open_data
from matinee.pack.reading.reader import Pack

OURS, OURS_RGB, FLOOR = "matinee, I420", "matinee, RGB", "decoding alone"
_BATCH = 4
_ONE_S, _MANY_S = 0.25, 0.6  # that a turn of one thread, and of several decoders, aims at


@dataclass(frozen=True)
class Options:
    """How fast clips come from a pack. First in one thread: milliseconds a clip of matinee's reader
    with I420 and RGB pixels, of bare decoding (the least there can be), and of the peers that are
    installed (torchcodec, decord, spdl-io), each giving the same frames from the same file. Then
    clips a second by number of decoders: processes, threads of one process, and peers in threads.
    Last the whole loader, with float RGB batches on the device.
    """

    data: str
    """A pack of videos, or the address of one."""
    out: Path = Path("bench/loader")
    """Folder for loader.json, plots and page."""
    clip: str = "16x4"
    """Frames x stride, or 8xuniform for one frame from each of 8 segments."""
    size: int = 224
    """Height and width of the clip in pixels; even."""
    decoders: tuple[int, ...] = ()
    """How many at once; without: 1, 2, 4 … up to twice the cores."""
    rounds: int = 5
    """Turns of each arm that count."""
    device: str = "auto"
    """Where the whole loader's batches arrive: auto, cpu or cuda."""
    peers: bool = True
    """Measure other libraries too."""
    full: bool = False
    """At least 15 turns, over three times as many clips."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"--rounds {self.rounds}: at least 1")
        if self.size < 2 or self.size % 2:
            raise ConfigError(f"--size {self.size}: even, at least 2")
        if self.decoders and min(self.decoders) < 1:
            raise ConfigError(f"--decoders {' '.join(map(str, self.decoders))}: each at least 1")
        parse_shape(self.clip)

    @property
    def counts(self) -> tuple[int, ...]:
        """Of decoders, rising."""
        if self.decoders:
            return tuple(sorted(set(self.decoders)))
        cores = len(os.sched_getaffinity(0))
        return tuple(sorted({2**i for i in range(12) if 2**i <= 2 * cores} | {cores}))

    @property
    def turns(self) -> int:
        return max(15, self.rounds) if self.full else self.rounds


@dataclass(frozen=True)
class Many:
    """A number of decoders: clips a second by kind, and what clips took in processes."""

    turns: Turns
    cost: DecodeCost

    def spread(self, arm: str) -> Spread:
        return self.turns.spread(arm)


@dataclass(frozen=True)
class Measured:
    """`one`: milliseconds a clip in one thread; `many[decoders]`, `whole`: clips a second."""

    options: Options
    pack: Pack
    clips: Sequence[Clip]
    one: Turns
    many: dict[int, Many]
    whole: Turns
    whole_note: str
    close: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def packed_bytes(self) -> float:
        """Of a clip's packets, on average."""
        return float(np.mean([clip.num_bytes for clip in self.clips]))

    @property
    def pixel_bytes(self) -> int:
        """Of a clip in I420."""
        return parse_shape(self.options.clip).frames * frame_bytes((self.options.size,) * 2)


def measure(options: Options, *, on_step: Callable[[int, int, str], None]) -> Result:
    """Read clips in turns.

    Raises:
        ConfigError: a data set without video, or samples shorter than a clip.
        PackError: the pack cannot be read.
    """
    from matinee.measure.bench.loader_result import result_of
    from matinee.training.precision import pick_device

    device = pick_device(options.device)
    pack = open_data(options.data)
    if not isinstance(pack, Pack):
        raise ConfigError(f"{shown_path(options.data)}: one pack of videos at a time")
    spec = clip_spec(parse_shape(options.clip), options.size)
    on_step(0, 1, "drawing clips")
    clips = draw_clips(pack, spec, 72 if options.full else 24)
    before = torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="matinee-bench-") as folder:
        makers: dict[str, Callable[[], Read]] = {}
        absent: dict[str, str] = {}
        close: dict[str, float] = {}
        torch.set_num_threads(1)
        try:
            if options.peers:
                makers, close, absent = _peers(options, pack, clips, Path(folder))
            one = _one_thread(options, pack, clips, makers, on_step)
            many = {
                count: _many(options, pack, clips, makers, count, on_step)
                for count in options.counts
            }
        finally:
            torch.set_num_threads(before)
        with _whole(options, pack, device) as (arm, note):
            whole = take_turns(
                {"loader": arm}, options.turns,
                on_turn=lambda done, all_: on_step(done, all_, "the whole loader"),
            )  # fmt: skip
    return result_of(Measured(options, pack, clips, one, many, whole, note, close, absent))


def _peers(
    options: Options, pack: Pack, clips: Sequence[Clip], folder: Path
) -> tuple[dict[str, Callable[[], Read]], dict[str, float], dict[str, str]]:
    """Those that read these clips, how close their frames are, and why the others do not."""
    if any(clip.frames is None for clip in clips):
        return {}, {}, {"peers": "clips span several chunks, which only a pack's reader joins"}
    files = write_files(pack, clips, folder)
    all_ = peers(files, options.size)
    close, refused = usable_peers(all_, pack, clips[0], options.size)
    return {name: all_[name] for name in close}, close, refused


# --- one thread -------------------------------------------------------------------------------


def _one_thread(
    options: Options,
    pack: Pack,
    clips: Sequence[Clip],
    makers: Mapping[str, Callable[[], Read]],
    on_step: Callable[[int, int, str], None],
) -> Turns:
    """Milliseconds a clip of every reader, in turns of a few clips.

    The first clip of a turn is read twice and counts once: readers drive each other's code and data
    from the processor's caches, which no training run does.
    """
    readers: dict[str, Read] = {
        OURS: pack_reader(pack, options.size, "i420"),
        OURS_RGB: pack_reader(pack, options.size, "rgb"),
        FLOOR: DecodeOnly(pack),
        **{name: make() for name, make in makers.items()},
    }
    readers[OURS](clips[0])
    begin = time.perf_counter()
    readers[OURS](clips[0])
    each = int(np.clip(_ONE_S / (time.perf_counter() - begin), 2, len(clips)))

    def arm(read: Read) -> Callable[[], float]:
        place = 0

        def turn() -> float:
            nonlocal place
            mine = [clips[(place + i) % len(clips)] for i in range(each)]
            place += each
            read(mine[0])
            spent = read.spent if isinstance(read, DecodeOnly) else 0.0
            begin = time.perf_counter()
            for clip in mine:
                read(clip)
            seconds = time.perf_counter() - begin
            if isinstance(read, DecodeOnly):
                seconds = read.spent - spent
            return 1e3 * seconds / each

        return turn

    return take_turns(
        {name: arm(read) for name, read in readers.items()}, options.turns,
        on_turn=lambda done, all_: on_step(done, all_, "one thread"),
    )  # fmt: skip


# --- several decoders -------------------------------------------------------------------------


def _many(
    options: Options,
    pack: Pack,
    clips: Sequence[Clip],
    makers: Mapping[str, Callable[[], Read]],
    count: int,
    on_step: Callable[[int, int, str], None],
) -> Many:
    """Clips a second of `count` decoders of each kind, in turns."""
    with ThreadPoolExecutor(count) as pool:
        arms: dict[str, Callable[[], float]] = {}
        closing: list[Callable[[], None]] = []
        costs: dict[str, list[DecodeCost]] = {"processes": [], "threads": []}
        try:
            for name, decoders in (
                ("processes", Decoders(count, 1, "measured")),
                ("threads", Decoders(0, count, "measured")),
            ):
                read_all, close = _backend(options, pack, decoders, costs[name])
                closing.append(close)
                arms[name] = _rate(read_all, clips, count)
            for name, make in makers.items():
                arms[name] = _rate(_in_threads(make, pool), clips, count)
            turns = take_turns(
                arms, options.turns,
                on_turn=lambda done, all_: on_step(done, all_, f"{count} decoders"),
            )  # fmt: skip
            return Many(turns, sum(costs["processes"], DecodeCost()))
        finally:
            for close in closing:
                close()


def _rate(
    read_all: Callable[[Sequence[Clip]], None], clips: Sequence[Clip], count: int
) -> Callable[[], float]:
    """An arm: clips a second of about as long a turn whatever it reads with."""
    lengths: list[int] = []

    def turn() -> float:
        if not lengths:  # the first turn warms up, and tells how long the others should be
            read_all([clips[i % len(clips)] for i in range(count)])
            begin = time.perf_counter()
            read_all([clips[i % len(clips)] for i in range(2 * count)])
            each = (time.perf_counter() - begin) / (2 * count)
            lengths.append(int(np.clip(_MANY_S / each, 3 * count, 2000)))
        mine = [clips[i % len(clips)] for i in range(lengths[0])]
        begin = time.perf_counter()
        read_all(mine)
        return len(mine) / (time.perf_counter() - begin)

    return turn


def _backend(
    options: Options, pack: Pack, decoders: Decoders, costs: list[DecodeCost]
) -> tuple[Callable[[Sequence[Clip]], None], Callable[[], None]]:
    """Clips through the loader's own workers, into batch memory; and what ends these. What each
    clip took is added to `costs`.
    """
    size = (options.size, options.size)
    frames = parse_shape(options.clip).frames
    rows = 2 * decoders.count
    backend = start_backend(
        decoders, pack.formats, (1, rows, frames), size, torch.device("cpu")
    )  # fmt: skip

    def read_all(clips: Sequence[Clip]) -> None:
        for number, clip in enumerate(clips):
            job = ClipJob(0, clip.parts, ((number % rows, clip.box),), size)
            backend.submit([(number, job)])
        left = len(clips)
        while left:
            for number, decoded in backend.wait():
                if decoded.failure is not None:
                    raise MatineeError(f"{clips[number].chunk.file}: {decoded.failure}")
                costs.append(decoded.cost)
                left -= 1

    return read_all, backend.close


def _in_threads(
    make: Callable[[], Read], pool: ThreadPoolExecutor
) -> Callable[[Sequence[Clip]], None]:
    """Clips through another library, a reader a thread."""
    own = local()

    def read(clip: Clip) -> None:
        if not hasattr(own, "read"):
            own.read = make()
        own.read(clip)

    return lambda clips: [None for _ in pool.map(read, clips)].clear()


# --- the whole loader -------------------------------------------------------------------------


@contextmanager
def _whole(
    options: Options, pack: Pack, device: torch.device
) -> Iterator[tuple[Callable[[], float], str]]:
    """Batches of float RGB on the device, as training gets them; and who decodes."""
    spec = clip_spec(parse_shape(options.clip), options.size)
    repeats = max(1, 1_000_000 // len(pack))
    with ClipLoader(
        pack, clip=spec, batch_size=_BATCH, repeats=repeats, device=device
    ) as loader:  # fmt: skip
        batches: Iterator[Any] = iter(loader)

        def turn() -> float:
            for _ in range(3):  # what was decoded ahead while nobody looked
                next(batches)
            begin, clips = time.perf_counter(), 0
            while clips < 3 * _BATCH or time.perf_counter() - begin < _MANY_S:
                next(batches)
                clips += _BATCH
            wait(device)
            return clips / (time.perf_counter() - begin)

        yield turn, f"{loader.explain()}; float RGB on {device.type}"
