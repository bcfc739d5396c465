"""Byte ranges of remote files, by fsspec. See Note [Remote packs].

fsspec is imported when the first remote file is read, in whichever process reads it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import random
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from matinee.errors import MatineeError
from matinee.extras import require
from matinee.pack.reading.block_cache import BlockCache
from matinee.pack.reading.request import (
    CONNECT_SECONDS,
    SILENT_SECONDS,
    Answer,
    NotThere,
    Passing,
    Refused,
    ask,
    words,
)
from matinee.pack.reading.storage import Range, Remote, Unread

WAITS = [0.5, 1.0, 2.0, 4.0, 8.0]  # seconds between tries
_AT_ONCE = 16
_BLOCK = 256 << 10  # bytes of a cached block

_lock = threading.Lock()
_clients: dict[tuple[int, str], Any] = {}
_caches: dict[tuple[int, str, int], BlockCache] = {}
_running: dict[int, concurrent.futures.Future[list[Answer]]] = {}  # by thread
_abandoned: set[int] = set()  # threads


class Gone(Unread):
    """There is no such file."""


def read_ranges(remote: Remote, ranges: Sequence[Range]) -> list[bytes]:
    """The bytes of some ranges, read at the same time, from the cache where they are there.

    Raises:
        Unread: one cannot be read, with its address and the reason.
    """
    if remote.cache is None:
        return [answer.data for answer in _fetch(remote, ranges)]
    cache = _cache(remote)
    blocks: dict[tuple[str, int], bytes | None] = {}
    missing: list[Range] = []
    for wanted in ranges:
        first, last = wanted.offset // _BLOCK, (wanted.offset + wanted.length - 1) // _BLOCK
        for number in range(first, last + 1):
            key = (wanted.file, number)
            if key in blocks:
                continue
            length = min(_BLOCK, wanted.file_size - number * _BLOCK)
            blocks[key] = cache.get(_name(remote, wanted), number, length)
            if blocks[key] is None:
                _join(missing, Range(wanted.file, wanted.file_size, number * _BLOCK, length))
    for gap, answer in zip(missing, _fetch(remote, missing), strict=True):
        for at in range(0, gap.length, _BLOCK):
            number, part = (gap.offset + at) // _BLOCK, answer.data[at : at + _BLOCK]
            blocks[(gap.file, number)] = part
            cache.put(_name(remote, gap), number, part)
    return [_cut(blocks, wanted) for wanted in ranges]


def forget_ranges(remote: Remote, ranges: Sequence[Range]) -> None:
    """Remove what the cache holds of some ranges, if there is one."""
    if remote.cache is None:
        return
    cache = _cache(remote)
    for held in ranges:
        for number in range(held.offset // _BLOCK, (held.offset + held.length - 1) // _BLOCK + 1):
            cache.drop(_name(remote, held), number)


def _join(ranges: list[Range], more: Range) -> None:
    """Add a range to a list; what follows the last one directly makes that longer."""
    last = ranges[-1] if ranges else None
    if last and last.file == more.file and last.offset + last.length == more.offset:
        ranges[-1] = Range(last.file, last.file_size, last.offset, last.length + more.length)
    else:
        ranges.append(more)


def _cut(blocks: dict[tuple[str, int], bytes | None], wanted: Range) -> bytes:
    first, last = wanted.offset // _BLOCK, (wanted.offset + wanted.length - 1) // _BLOCK
    joined = b"".join(blocks[(wanted.file, n)] or b"" for n in range(first, last + 1))
    begin = wanted.offset - first * _BLOCK
    return joined[begin : begin + wanted.length]


def _name(remote: Remote, wanted: Range) -> str:
    return f"{remote.stamp}\0{wanted.file}\0{wanted.file_size}"


def read_file(
    remote: Remote,
    address: str,
    limit: int,
    write: Callable[[bytes], Any],
    tell: Callable[[int], Any] = lambda size: None,
) -> None:
    """Give all bytes of a file to `write`, in pieces, of which some are read at the same time.

    `tell` is given its size before.

    Raises:
        Gone: there is no such file.
        Unread: it cannot be read, or has more than `limit` bytes.
    """
    piece = 8 << 20
    (first,) = _fetch(remote, [Range(address, 0, 0, piece)], whole=False)
    if first.size > limit:
        raise Unread(f"{address} has {first.size} bytes, more than {limit}: it is damaged")
    tell(first.size)
    write(first.data)
    at = len(first.data)
    while at < first.size:
        some = [
            Range(address, first.size, offset, min(piece, first.size - offset))
            for offset in range(at, min(first.size, at + 4 * piece), piece)
        ]
        for answer in _fetch(remote, some):
            write(answer.data)
            at += len(answer.data)


def _fetch(remote: Remote, ranges: Sequence[Range], *, whole: bool = True) -> list[Answer]:
    if not ranges:
        return []
    try:
        client = _client(ranges[0].file.partition("://")[0])
    except MatineeError:
        raise
    except Exception as error:  # settings of the service that its library refuses
        raise Unread(f"{ranges[0].file}: {words(error)}") from None
    thread = threading.get_ident()
    with _lock:
        if thread in _abandoned:
            raise Unread(f"{ranges[0].file}: reading was given up")
        found = asyncio.run_coroutine_threadsafe(
            _fetch_all(client, remote, ranges, whole), client.loop
        )
        _running[thread] = found
    try:
        return found.result()
    except concurrent.futures.CancelledError:
        raise Unread(f"{ranges[0].file}: reading was given up") from None
    finally:
        found.cancel()  # where an interrupt came
        with _lock:
            _running.pop(thread, None)


@contextmanager
def abandoned(threads: Collection[int]) -> Iterator[None]:
    """Until left, some threads (their idents) read nothing; what they wait for is cancelled."""
    with _lock:
        _abandoned.update(threads)
        running = [_running[thread] for thread in threads if thread in _running]
    for future in running:
        future.cancel()
    try:
        yield
    finally:
        with _lock:
            _abandoned.difference_update(threads)


async def _fetch_all(
    client: Any, remote: Remote, ranges: Sequence[Range], whole: bool
) -> list[Answer]:
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(wanted: Range) -> Answer:
        async with turn:
            return await _persist(lambda: ask(client, remote, wanted, whole), wanted.file)

    tasks = [asyncio.ensure_future(one(wanted)) for wanted in ranges]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _persist(request: Callable[[], Awaitable[Answer]], address: str) -> Answer:
    """Ask again while that may help."""
    tries = 0
    for wait in (*WAITS, None):
        tries += 1
        try:
            return await request()
        except NotThere:
            raise Gone(f"{address}: no such file") from None
        except Refused as error:
            raise Unread(f"{address}: {error}") from None
        except Passing as error:
            reason = str(error)
        if wait is not None:
            await asyncio.sleep(wait * random.uniform(0.75, 1.25))  # workers fail together
    raise Unread(f"{address}: {reason} ({tries} tries)")


# --- what a process keeps ---------------------------------------------------------------------


def _client(scheme: str) -> Any:
    """The fsspec client of a scheme, one a process: a forked one makes its own."""
    kind = "http" if scheme == "https" else scheme
    with _lock:
        key = (os.getpid(), kind)
        if key not in _clients:
            fsspec = require("fsspec", "remote")
            settings: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
            if kind == "s3":
                require("s3fs", "remote")
                settings["config_kwargs"] = {
                    "connect_timeout": CONNECT_SECONDS, "read_timeout": SILENT_SECONDS,
                    "retries": {"total_max_attempts": 1}, "max_pool_connections": 64,
                }  # fmt: skip
            elif kind == "gs":
                aiohttp = require("aiohttp", "remote")
                settings["requests_timeout"] = aiohttp.ClientTimeout(
                    sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS
                )
            else:
                require("aiohttp", "remote")
            if kind == "gs":  # by name it would be a kind that asks more of the service
                client = require("gcsfs.core", "remote").GCSFileSystem(**settings)
                again = getattr(type(client)._request, "__wrapped__", None)
                if again is not None:  # tried again here, as below
                    client._request = partial(again, client)
                if (logger := logging.getLogger("gcsfs")).level == logging.NOTSET:
                    logger.setLevel(logging.CRITICAL)  # it logs tracebacks of what is told here
            else:
                client = fsspec.filesystem(kind, **settings)
            client.sizes = {}
            if kind == "s3":
                client.retries = 1  # tried again here, with the waits that are documented
            _clients[key] = client
        return _clients[key]


def _cache(remote: Remote) -> BlockCache:
    assert remote.cache is not None
    with _lock:
        key = (os.getpid(), remote.cache.folder, remote.cache.bytes)
        if key not in _caches:
            _caches[key] = BlockCache(remote.cache.folder, remote.cache.bytes)
        return _caches[key]


def _after_fork() -> None:
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()  # another thread of the parent may have held it
    _running.clear()
    _abandoned.clear()


os.register_at_fork(after_in_child=_after_fork)
