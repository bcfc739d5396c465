"""Reads of the size of clips, one after the other and at random, by number of readers."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.errors import ConfigError
from matinee.measure.arms import Spread, take_turns
from matinee.measure.bench.io_places import (
    Found,
    check_folder,
    clips_of_pack,
    drop_cache,
    find_files,
    resident_part,
    write_test_file,
)
from matinee.measure.bench.loader_clips import clip_spec, parse_shape
from matinee.measure.draw.figures import Lines, Series
from matinee.measure.result import Part, Result, Table
from matinee.pack.reading.remote import read_ranges
from matinee.pack.reading.storage import LocalFiles, Range

PATTERNS = ("random", "sequential")
KIB = 1024
_AIM_S = 0.5  # of a turn
_FEWEST, _MOST = 24, 4000  # reads of a turn
_SPARSE = 0.25  # part of all ranges that one turn may read without a word


@dataclass(frozen=True)
class Options:
    """How fast a disk or address gives what clips need: ranges of the size of a clip, at random
    places and one behind the other, by several readers at once. Before each turn what the system
    keeps of local files in memory is dropped, and whether that worked is checked and said. Of a
    pack those ranges are read that clips need; of other files, ranges of --kib KiB.
    """

    path: str
    """A folder, a file, a pack, or the address of a pack (http, https, s3, gs)."""
    out: Path = Path("bench/io")
    """Folder for io.json, plots and page."""
    clip: str = "16x4"
    """Clips whose ranges are read of a pack: frames x stride, or 8xuniform."""
    kib: int = 256
    """Size of a read, of files that are no pack."""
    readers: tuple[int, ...] = (1, 4, 16)
    """Threads that read at once; with --full also 2, 8 and 32."""
    rounds: int = 5
    """Turns of each arm."""
    write_mib: int = 0
    """First write a file of random bytes of this size into the folder, read that alone, and remove
    it: for a disk that is empty yet."""
    full: bool = False
    """More numbers of readers, at least 15 turns."""

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.kib < 1:
            raise ConfigError(f"--rounds {self.rounds} --kib {self.kib}: at least 1")
        if not self.readers or min(self.readers) < 1:
            raise ConfigError(f"--readers {' '.join(map(str, self.readers))}: each at least 1")
        if self.write_mib < 0:
            raise ConfigError(f"--write-mib {self.write_mib}: 0 or more")
        parse_shape(self.clip)

    @property
    def counts(self) -> tuple[int, ...]:
        """Of readers, rising."""
        return tuple(sorted({*self.readers, *((2, 8, 32) if self.full else ())}))


def measure(options: Options, *, on_step: Callable[[int, int, str], None]) -> Result:
    """Read in turns.

    Raises:
        ConfigError: nothing to read there.
        PackError, MatineeError: the pack or address cannot be read.
    """
    with _place(options) as found:
        rounds = max(15, options.rounds) if options.full else options.rounds
        rng = np.random.default_rng(0)
        turns = _Turns(found, options.counts, rng)
        arms = {
            f"{pattern} {readers}": turns.arm(pattern, readers)
            for pattern in PATTERNS for readers in options.counts
        }  # fmt: skip
        on_step(0, 1, "counting")
        turns.find_lengths()
        spent = take_turns(arms, rounds, on_turn=lambda done, all_: on_step(done, all_, "turns"))
    mean = found.total_bytes / len(found.ranges)
    rows = [
        Reads(
            pattern, readers, spent.spread(f"{pattern} {readers}"),
            np.concatenate(turns.latencies[f"{pattern} {readers}"][1:]), mean,
        )
        for pattern in PATTERNS for readers in options.counts
    ]  # fmt: skip
    return _result(found, rows, turns, rounds)


@contextmanager
def _place(options: Options) -> Iterator[Found]:
    """What to read; a test file is removed again."""
    if options.write_mib:
        check_folder(options.path)
        with tempfile.TemporaryDirectory(prefix="matinee-io-", dir=options.path) as folder:
            file = write_test_file(Path(folder), options.write_mib)
            yield find_files(file, options.kib * KIB)
    else:
        pack = clips_of_pack(options.path, clip_spec(parse_shape(options.clip), 224))
        yield pack or find_files(Path(options.path), options.kib * KIB)


@dataclass(frozen=True)
class Reads:
    """One arm: bytes a second of its turns, and seconds of each read."""

    pattern: str
    readers: int
    speed: Spread
    latency: NDArray[np.float64]
    mean_bytes: float

    def percentile(self, q: float) -> float:
        """Milliseconds."""
        return float(1e3 * np.percentile(self.latency, q))

    @property
    def reads_per_s(self) -> float:
        return self.speed.median / self.mean_bytes


class _Turns:
    """The arms. Each remembers how long its reads took: `latencies[arm][turn]`, warm-up first."""

    def __init__(self, found: Found, counts: Sequence[int], rng: np.random.Generator) -> None:
        self._found, self._rng, self._counts = found, rng, counts
        self.latencies: dict[str, list[NDArray[np.float64]]] = {}
        self.resident: list[float] = []
        self.lengths: dict[int, int] = {}  # reads of a turn, by readers
        self._local = threading.local()

    def find_lengths(self) -> None:
        """How many reads a turn of each number of readers has, so that it takes about as long."""
        for readers in self._counts:
            wanted = self._draw("random", _FEWEST)
            self._forget(wanted)  # from memory, a turn would seem to need thousands of reads
            seconds = self._timed(wanted, readers)[0] / len(wanted)
            self.lengths[readers] = int(np.clip(_AIM_S / max(seconds, 1e-9), _FEWEST, _MOST))

    def arm(self, pattern: str, readers: int) -> Callable[[], float]:
        """Bytes a second of a turn."""

        def turn() -> float:
            wanted = self._draw(pattern, self.lengths[readers])
            if self._forget(wanted):
                self.resident.append(resident_part(wanted))
            seconds, latencies = self._timed(wanted, readers)
            self.latencies.setdefault(f"{pattern} {readers}", []).append(latencies)
            return sum(r.length for r in wanted) / seconds

        return turn

    def _forget(self, wanted: list[Range]) -> bool:
        """Drop what the system keeps of files in memory; False of an address, where none does."""
        if self._found.remote is not None:
            return False
        drop_cache({r.file for r in wanted})
        return True

    def _draw(self, pattern: str, count: int) -> list[Range]:
        ranges = self._found.ranges
        if pattern == "sequential":
            start = int(self._rng.integers(len(ranges)))
            return [ranges[(start + i) % len(ranges)] for i in range(min(count, len(ranges)))]
        if count <= len(ranges):
            return [ranges[i] for i in self._rng.choice(len(ranges), count, replace=False)]
        return [ranges[i] for i in self._rng.permutation(len(ranges))]  # none twice: not cached

    def _timed(self, wanted: list[Range], readers: int) -> tuple[float, NDArray[np.float64]]:
        with ThreadPoolExecutor(readers) as pool:
            list(pool.map(lambda _: time.sleep(0.01), range(readers)))  # threads are there
            begin = time.perf_counter()
            latencies = np.array(list(pool.map(self._read, wanted)))
            return time.perf_counter() - begin, latencies

    def _read(self, wanted: Range) -> float:
        begin = time.perf_counter()
        if self._found.remote is not None:
            read_ranges(self._found.remote, [wanted])
        else:
            if not hasattr(self._local, "files"):
                self._local.files = LocalFiles()
            self._local.files.read(wanted.file, wanted.offset, wanted.length)
        return time.perf_counter() - begin


def _result(found: Found, rows: list[Reads], turns: _Turns, rounds: int) -> Result:
    size = float(np.median([r.length for r in found.ranges]))
    kept = max(turns.resident, default=0.0)
    text = (
        f"{found.what}: {len(found.ranges):,} ranges, {size / KIB:.0f} KiB in the middle, "
        f"{found.total_bytes / 2**20:,.0f} MiB in all. Medians of {rounds} turns with quartiles."
    )
    if found.remote is None:
        text += "\n\n" + _cache_words(kept)
        ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        share = min(1.0, max(turns.lengths.values()) / len(found.ranges))
        if share > _SPARSE:
            text += (
                f" A turn reads up to {100 * share:.0f} % of all, so what the system reads ahead "
                "for one read serves others too: a larger --path tells more of the disk."
            )
        if found.total_bytes < ram:
            text += (
                " A disk or its host may keep files of this size in a memory of its own, which "
                "cannot be dropped from here."
            )
    part = Part("reads", "Reads", text, [_table(rows)], {"speed": _speed(rows), **_latency(rows)})
    return Result(
        "io", "Reading speed", f"{found.what}.", [part],
        {
            "path": found.what, "ranges": len(found.ranges), "median_read_bytes": size,
            "bytes": found.total_bytes, "rounds": rounds, "remote": found.remote is not None,
            "resident_after_dropping": kept if found.remote is None else None,
            "measured": [
                {
                    "pattern": r.pattern, "readers": r.readers,
                    "bytes_per_s": r.speed.to_dict(), "reads": len(r.latency),
                    "latency_ms": {f"p{q}": r.percentile(q) for q in (50, 90, 99)},
                }
                for r in rows
            ],
        },
    )  # fmt: skip


def _cache_words(kept: float) -> str:
    if kept < 0.01:
        return "Files were out of memory before each turn."
    return (
        f"The cache could not be dropped: up to {100 * kept:.0f} % of what was to be read was "
        "still in memory (a file system in memory, or files that others have open), so part of "
        "these figures is the memory's and not the disk's."
    )


def _table(rows: list[Reads]) -> Table:
    shown = [
        [
            r.pattern, f"{r.readers}", str(_mb(r.speed)), f"{r.percentile(50):.3g}",
            f"{r.percentile(99):.3g}", f"{r.reads_per_s:,.0f}",
        ]
        for r in rows
    ]  # fmt: skip
    columns = ["reads", "readers", "MB/s", "p50 ms", "p99 ms", "reads/s"]
    note = (
        "p50 and p99: how long one read takes. reads/s: clips a second that could be fed, one read "
        "each."
    )
    return Table(columns, shown, "", note)


def _mb(spread: Spread) -> Spread:
    return Spread(spread.median / 1e6, spread.low / 1e6, spread.high / 1e6, spread.count)


def _lines(rows: list[Reads], about: str, axis: str, value: Callable[[Reads], Any]) -> Lines:
    series = []
    for pattern in PATTERNS:
        mine = [r for r in rows if r.pattern == pattern]
        values = [value(r) for r in mine]
        at = [r.readers for r in mine]
        series.append(
            Series(pattern, at, [v[1] for v in values], [v[0] for v in values],
                   [v[2] for v in values])
        )  # fmt: skip
    ticks = sorted({r.readers for r in rows})
    return Lines(about, "readers", axis, series, x_log=True, x_ticks=ticks)


def _speed(rows: list[Reads]) -> Lines:
    about = "Megabytes a second against readers, at random places and one behind the other."
    return _lines(rows, about, "MB/s", lambda r: (_mb(r.speed).low, _mb(r.speed).median,
                                                  _mb(r.speed).high))  # fmt: skip


def _latency(rows: list[Reads]) -> dict[str, Lines]:
    about = "Milliseconds of a read against readers: the median, and the band up to 99 in 100."
    return {
        "latency": _lines(
            rows, about, "a read, ms",
            lambda r: (r.percentile(50), r.percentile(50), r.percentile(99)),
        )
    }  # fmt: skip
