"""Blocks of remote files in a local folder, up to so many bytes, shared by all processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

log = logging.getLogger("matinee.pack")

_MAGIC = b"MTB1"
_HEADER = struct.Struct("<4sI")  # magic, CRC-32 of what follows
_USED = struct.Struct("<q")
_KEPT = 0.9  # of the limit stays when the oldest blocks are removed
_PAUSE = 60.0  # seconds without keeping more, after a write that failed
_PLACE = re.compile(r"[0-9a-f]{2}")
_BLOCK = re.compile(r"[0-9a-f]{40}-\d+")
_ASIDE = re.compile(r"[0-9a-f]{40}-\d+\.\d+\.\d+\.(\d+)\.tmp")
_STALE = 3600.0  # seconds after which a file aside is of a process that died


class BlockCache:
    """A folder of blocks, the least recently used of which go first.

    Any number of processes and threads may use it at once, and what they keep outlives them. A
    block is written aside and renamed, carries a checksum, and is compared with it whenever it is
    read: a damaged one is removed and counts as absent. A full disk makes it give up a tenth of its
    blocks; a folder that cannot be written to is told once a process, and tried again each minute.
    Blocks lie in `matinee-blocks` of the folder, and no other file is ever removed.
    """

    def __init__(self, folder: str, limit: int) -> None:
        """Args: limit: bytes of all blocks, those being written too; never exceeded."""
        self._folder, self._limit = Path(folder) / "matinee-blocks", limit
        self._lock = threading.Lock()
        self._resume, self._told = 0.0, False

    def get(self, name: str, number: int, length: int) -> bytes | None:
        """Block `number` of the file `name`, None if it is not here."""
        path = self._path(name, number)
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        data = raw[_HEADER.size :]
        if len(raw) != _HEADER.size + length or _HEADER.unpack_from(raw) != (_MAGIC, crc32(data)):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):  # a folder of another owner is read all the same
            os.utime(path)
        return data

    def put(self, name: str, number: int, data: bytes) -> None:
        """Keep a block."""
        if time.monotonic() < self._resume:
            return
        size = len(data) + _HEADER.size
        if size > self._limit * _KEPT:
            return
        path = self._path(name, number)
        try:
            try:
                self._write(path, size, data)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                with self._locked() as fd:
                    os.pwrite(fd, _USED.pack(self._evict(self._limit, _KEPT)), 0)
                self._write(path, size, data)
        except OSError as error:
            self._resume = time.monotonic() + _PAUSE
            if not self._told:
                self._told = True
                log.warning(
                    "the cache %s cannot be written to (%s): reading goes on, and keeping more is "
                    "tried each minute", self._folder, error.strerror or error,
                )  # fmt: skip

    def drop(self, name: str, number: int) -> None:
        """Remove a block, if it is here."""
        with contextlib.suppress(OSError):  # counted until the next look at all blocks
            self._path(name, number).unlink()

    def _write(self, path: Path, size: int, data: bytes) -> None:
        who = f"{os.getpid()}.{threading.get_ident()}"
        aside = path.with_name(f"{path.name}.{who}.{size}.tmp")
        try:
            with self._reserve(size, aside) as file:
                file.write(_HEADER.pack(_MAGIC, crc32(data)))
                file.write(data)
            aside.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise

    def _path(self, name: str, number: int) -> Path:
        key = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:40]
        place = hashlib.sha256(f"{key} {number}".encode()).hexdigest()[:2]
        return self._folder / place / f"{key}-{number}"

    def _reserve(self, size: int, aside: Path) -> BinaryIO:
        """A file to write `size` bytes to, which are counted; there is room for them."""
        with self._locked() as fd:
            raw = os.pread(fd, _USED.size, 0)
            used = _USED.unpack(raw)[0] if len(raw) == _USED.size else -1
            if used < 0 or used + size > self._limit:
                used = self._evict(int(self._limit * _KEPT) - size)
            aside.parent.mkdir(exist_ok=True)
            file = aside.open("wb")
            os.pwrite(fd, _USED.pack(used + size), 0)
        return file

    def _evict(self, keep: int, share: float = 1.0) -> int:
        """Remove the blocks that were not used for the longest time; how many bytes are left.

        Args: share: of what is there, that may stay.
        """
        found: list[tuple[int, int, str]] = []
        aside = 0
        for folder in os.scandir(self._folder):
            if not folder.is_dir(follow_symlinks=False) or not _PLACE.fullmatch(folder.name):
                continue
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):
                    written = _ASIDE.fullmatch(entry.name)
                    if not written and not _BLOCK.fullmatch(entry.name):
                        continue
                    stat = entry.stat(follow_symlinks=False)
                    if not written:
                        found.append((stat.st_mtime_ns, stat.st_size, entry.path))
                    elif time.time() - stat.st_mtime > _STALE:
                        Path(entry.path).unlink()
                    else:  # being written: will have as many bytes as its name says
                        aside += int(written[1])
        used = aside + sum(size for _, size, _ in found)
        keep = min(keep, int(used * share))
        for _, size, path in sorted(found):
            if used <= keep:
                break
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
            used -= size
        return used

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The file that counts the bytes, for this thread alone."""
        with self._lock:
            self._folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._folder / "used", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                yield fd
            finally:
                os.close(fd)
