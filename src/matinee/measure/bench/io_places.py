"""What there is to read: ranges of files, of a pack's chunks, of an address; and the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from matinee.data.clips import ClipSpec, plan_training_clip
from matinee.data.random import generator
from matinee.errors import ConfigError
from matinee.media.plan import byte_ranges, packets_to_feed
from matinee.pack.format import MANIFEST
from matinee.pack.mixture import shown_path
from matinee.pack.open import open_data
from matinee.pack.reading.clip import ClipReader
from matinee.pack.reading.reader import Pack
from matinee.pack.reading.storage import Range, Remote, is_address

_MOST_FILES = 2000
_MOST_RUNS, _RUN = 200, 1000  # of neighbours, and the ranges of a run, where there are more
_CLIPS, _FAR_CLIPS = 2000, 200  # that are planned; of an address each chunk's table is a request
_FEWEST = 8
_LOOKED_AT = 64  # ranges of which it is seen whether they are in memory
_BLOCK = 4 << 20


@dataclass(frozen=True)
class Found:
    """Ranges in the order in which they lie. `remote`: how to ask for them, None for files."""

    what: str
    ranges: Sequence[Range]
    remote: Remote | None = None

    @property
    def total_bytes(self) -> int:
        return sum(r.length for r in self.ranges)


def clips_of_pack(path: str, spec: ClipSpec) -> Found | None:
    """What random clips of a pack read, or None for a path that is no pack.

    Raises:
        ConfigError: a data set without video, or clips that are all too short.
        PackError, MediaError: a pack that cannot be read.
    """
    if not is_address(path) and not _is_pack(path):
        return None
    pack = open_data(path)
    if not isinstance(pack, Pack):
        raise ConfigError(f"{shown_path(path)}: one pack of videos at a time")
    reader, ranges = ClipReader(pack.formats), set()
    for number in range(_FAR_CLIPS if is_address(path) else _CLIPS):
        rng = generator(0, 0, number, "bench io")
        plan = plan_training_clip(pack.info(int(rng.integers(len(pack)))), spec, rng)
        for part in pack.locate(plan.video, plan.frames):
            table = reader.table(part.chunk)
            packets = [p for run in packets_to_feed(table, part.frames) for p in run]
            spans = byte_ranges(table.offset[packets].tolist(), table.size[packets].tolist())
            ranges |= {part.chunk.part(start, end) for start, end in spans}
            remote = part.chunk.remote
    reader.close()
    apart = _apart(ranges)
    if len(apart) < _FEWEST:
        raise ConfigError(
            f"{shown_path(path)}: its clips are read in {len(apart)} ranges apart: too few "
            "to measure"
        )
    every = f"stride {spec.stride}" if spec.sampling == "dense" else "one of each segment"
    what = f"clips of {spec.frames} frames, {every}, of {shown_path(path)}"
    return Found(what, apart, remote)


def _apart(ranges: Collection[Range]) -> list[Range]:
    """In the order in which they lie, without those that overlap one before: it would be read from
    memory.
    """
    kept: list[Range] = []
    for wanted in sorted(ranges, key=lambda r: (r.file, r.offset, r.length)):
        last = kept[-1] if kept else None
        if last is None or wanted.file != last.file or wanted.offset >= last.offset + last.length:
            kept.append(wanted)
    return kept


def _is_pack(path: str) -> bool:
    return (Path(path) / MANIFEST).is_file()


def check_folder(path: str) -> None:
    """Refuse what a test file cannot be written to.

    Raises:
        ConfigError: an address, a pack, or no folder.
    """
    kind = "an address" if is_address(path) else "a pack" if _is_pack(path) else "none"
    if kind != "none" or not Path(path).is_dir():
        raise ConfigError(f"--write-mib needs a folder, and {shown_path(path)} is {kind}")


def find_files(path: Path, size: int) -> Found:
    """Ranges of `size` bytes of a file, or of the 2,000 largest files below a folder; of many
    ranges 200,000 in runs of neighbours, which lie evenly over all.

    Raises:
        ConfigError: no such path, or files too small.
    """
    if not path.exists():
        raise ConfigError(f"{path}: no such file or folder")
    files = [path] if path.is_file() else [
        Path(folder) / name for folder, _, names in os.walk(path) for name in names
    ]  # fmt: skip
    sizes = {f: f.stat().st_size for f in files if f.is_file() and os.access(f, os.R_OK)}
    large = sorted(sorted(sizes, key=lambda f: sizes[f], reverse=True)[:_MOST_FILES])
    ends = np.cumsum([sizes[f] // size for f in large], dtype=np.int64)
    total = int(ends[-1]) if large else 0
    ranges = []
    for number in _numbers(total).tolist():
        at = int(np.searchsorted(ends, number, side="right"))
        before = int(ends[at - 1]) if at else 0
        ranges.append(Range(str(large[at]), sizes[large[at]], (number - before) * size, size))
    if len(ranges) < _FEWEST:
        raise ConfigError(
            f"{path} has {len(ranges)} ranges of {size // 1024} KiB: choose a folder with larger "
            "files, a smaller --kib, or --write-mib 1024 to have a file written and removed"
        )
    part = f", {len(ranges):,} of {total:,} ranges" if len(ranges) < total else ""
    return Found(f"{path}{part}", ranges)


def _numbers(total: int) -> NDArray[np.int64]:
    """Of the ranges that are read, rising: all, or runs at even distances, so that those that are
    read one behind the other are neighbours.
    """
    if total <= _MOST_RUNS * _RUN:
        return np.arange(total)
    starts = np.arange(_MOST_RUNS) * (total - _RUN) // (_MOST_RUNS - 1)
    return (starts[:, None] + np.arange(_RUN)).ravel()


def write_test_file(folder: Path, mib: int) -> Path:
    """A file of random bytes that lies on the disk, not in memory alone.

    Raises:
        OSError: there is no room.
    """
    path, rng = folder / "test.bin", np.random.default_rng(0)
    with path.open("wb") as file:
        for start in range(0, mib << 20, _BLOCK):
            file.write(rng.bytes(min(_BLOCK, (mib << 20) - start)))
        file.flush()
        os.fsync(file.fileno())
    return path


def drop_cache(files: Collection[str]) -> None:
    """Ask the system to forget what it keeps of files in memory (posix_fadvise, DONTNEED)."""
    for name in files:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def resident_part(ranges: Sequence[Range]) -> float:
    """Which part of some ranges' pages is in memory (mincore), by a sample of them."""
    libc = ctypes.CDLL(None, use_errno=True)
    page, inside, total = mmap.PAGESIZE, 0, 0
    for wanted in ranges[:: max(1, len(ranges) // _LOOKED_AT)]:
        start = wanted.offset // page * page
        length = wanted.offset + wanted.length - start
        with Path(wanted.file).open("rb") as file:
            # Private and writable, so that ctypes gives its address; nothing is touched.
            mapped = mmap.mmap(
                file.fileno(), length, flags=mmap.MAP_PRIVATE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=start,
            )  # fmt: skip
        pages = -(-length // page)
        states = (ctypes.c_ubyte * pages)()
        view = (ctypes.c_char * length).from_buffer(mapped)
        at = ctypes.c_void_p(ctypes.addressof(view))
        failed = libc.mincore(at, ctypes.c_size_t(length), states)
        del view
        mapped.close()
        if failed:
            raise OSError(ctypes.get_errno(), "mincore", wanted.file)
        inside += sum(state & 1 for state in states)
        total += pages
    return inside / max(total, 1)
