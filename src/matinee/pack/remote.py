"""Byte ranges of remote files, by fsspec. See Note [Remote packs].

fsspec is imported when the first remote file is read, in whichever process reads it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import re
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matinee.errors import MediaError, first_line
from matinee.extras import require
from matinee.pack.block_cache import BlockCache
from matinee.pack.storage import Range, Remote

WAITS = [0.5, 1.0, 2.0, 4.0, 8.0]  # seconds between tries
CONNECT_SECONDS, SILENT_SECONDS = 10, 30
_AT_ONCE = 16
_REMEMBERED = 1 << 16  # sizes of files, in buckets
_BLOCK = 256 << 10  # bytes of a cached block
_PASSING = {408, 425, 429}

_lock = threading.Lock()
_clients: dict[tuple[int, str], Any] = {}
_caches: dict[tuple[int, str], BlockCache] = {}


class Gone(MediaError):
    """There is no such file."""


class _Refused(Exception):
    """An answer that another try would not change."""


class _NotThere(_Refused):
    """There is no such file."""


class _Passing(Exception):
    """A failure that another try may not meet."""


@dataclass(frozen=True)
class _Answer:
    data: bytes
    size: int  # of the whole file


def read_ranges(remote: Remote, ranges: Sequence[Range]) -> list[bytes]:
    """The bytes of some ranges, read at the same time, from the cache where they are there.

    Raises:
        MediaError: one cannot be read, with its address and the reason.
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


def read_file(remote: Remote, address: str, limit: int, write: Callable[[bytes], Any]) -> None:
    """Give all bytes of a file to `write`, in pieces, of which some are read at the same time.

    Raises:
        Gone: there is no such file.
        MediaError: it cannot be read, or has more than `limit` bytes.
    """
    piece = 8 << 20
    (first,) = _fetch(remote, [Range(address, 0, 0, piece)], whole=False)
    if first.size > limit:
        raise MediaError(f"{address} has {first.size} bytes, more than {limit}: it is damaged")
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


def _fetch(remote: Remote, ranges: Sequence[Range], *, whole: bool = True) -> list[_Answer]:
    if not ranges:
        return []
    client = _client(ranges[0].file.partition("://")[0])
    asyn = require("fsspec.asyn", "remote")
    found: list[_Answer] = asyn.sync(client.loop, _fetch_all, client, remote, ranges, whole)
    return found


async def _fetch_all(
    client: Any, remote: Remote, ranges: Sequence[Range], whole: bool
) -> list[_Answer]:
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(wanted: Range) -> _Answer:
        async with turn:
            return await _persist(lambda: _ask(client, remote, wanted, whole), wanted.file)

    tasks = [asyncio.ensure_future(one(wanted)) for wanted in ranges]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _persist(ask: Callable[[], Awaitable[_Answer]], address: str) -> _Answer:
    """Ask again while that may help."""
    tries = 0
    for wait in (*WAITS, None):
        tries += 1
        try:
            return await ask()
        except _NotThere:
            raise Gone(f"{address}: no such file") from None
        except _Refused as error:
            raise MediaError(f"{address}: {error}") from None
        except _Passing as error:
            reason = str(error)
        if wait is not None:
            await asyncio.sleep(wait * random.uniform(0.75, 1.25))  # workers fail together
    raise MediaError(f"{address}: {reason} ({tries} tries)")


async def _ask(client: Any, remote: Remote, wanted: Range, whole: bool) -> _Answer:
    if wanted.file.startswith("http"):
        answer = await _ask_http(client, remote, wanted)
    else:
        answer = await _ask_bucket(client, wanted)
    if wanted.file_size and answer.size != wanted.file_size:
        raise _Refused(
            f"has {answer.size} bytes where the pack's tables say {wanted.file_size}: it was "
            "replaced or is damaged"
        )
    if len(answer.data) != wanted.length and (whole or len(answer.data) != answer.size):
        raise _Passing(f"{len(answer.data)} of {wanted.length} bytes came")
    return answer


# --- web servers ------------------------------------------------------------------------------


async def _ask_http(client: Any, remote: Remote, wanted: Range) -> _Answer:
    aiohttp = require("aiohttp", "remote")
    url = client.encode_url(remote.whole(wanted.file))
    last = wanted.offset + wanted.length - 1
    settings = dict(client.kwargs)
    settings["headers"] = {
        **settings.get("headers", {}),
        "Range": f"bytes={wanted.offset}-{last}",
        "Accept-Encoding": "identity",
    }
    silent = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
    settings.update(allow_redirects=False, timeout=silent)
    session = await client.set_session()
    try:
        async with session.get(url, **settings) as response:
            size = _size_of(response, wanted)
            data = bytearray()
            async for part in response.content.iter_chunked(1 << 18):
                data += part
                if len(data) > wanted.length:
                    raise _Refused("the server sends more bytes than it was asked for")
            return _Answer(bytes(data), size)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _Passing(_words(error)) from None


def _size_of(response: Any, wanted: Range) -> int:
    """Size of the file of which an answer holds a part; anything else is an error."""
    status, headers = response.status, response.headers
    stated = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", headers.get("Content-Range", ""))
    if status == 206 and stated and int(stated[1]) == wanted.offset:
        return int(stated[2])
    if status in (200, 206):
        raise _Refused(
            "the server ignores byte ranges (Range: bytes=…), without which a pack cannot be read "
            "from afar: copy the pack here, or serve it with a server such as nginx"
        )
    if status in (404, 410):
        raise _NotThere
    if 300 <= status < 400:
        raise _Refused(f"HTTP {status}: the server refers elsewhere; give the address it refers to")
    words = f"HTTP {status} {response.reason or ''}".strip()
    if status == 416:
        raise _Refused(f"{words}: the file is shorter than the pack's tables say")
    raise (_Passing if status >= 500 or status in _PASSING else _Refused)(words)


# --- buckets ----------------------------------------------------------------------------------


async def _ask_bucket(client: Any, wanted: Range) -> _Answer:
    try:
        size = client.sizes.get(wanted.file)
        if size is None:
            if len(client.sizes) >= _REMEMBERED:
                client.sizes.clear()
            size = client.sizes[wanted.file] = int((await client._info(wanted.file))["size"])
        end = min(wanted.offset + wanted.length, size)
        return _Answer(await client._cat_file(wanted.file, start=wanted.offset, end=end), size)
    except FileNotFoundError:
        raise _NotThere from None
    except PermissionError as error:
        raise _Refused(f"access is denied: {_words(error)}") from None
    except Exception as error:  # the clients of the services raise errors of their own kinds
        if isinstance(error, OSError) and error.errno in (errno.EINVAL, errno.ENOENT):
            raise _Refused(_words(error)) from None
        if "Credentials" in type(error).__name__:
            raise _Refused(
                "no credentials: set those of the service, or FSSPEC_S3_ANON=true for a public "
                "bucket"
            ) from None
        raise _Passing(_words(error)) from None


def _words(error: BaseException) -> str:
    """What an error says, without what is secret in the addresses it names."""
    if isinstance(error, TimeoutError):
        return f"no answer in {SILENT_SECONDS} s"
    text = f"{type(error).__name__}: {first_line(error)}"
    text = re.sub(r"://[^/\s]*@", "://", text)
    return re.sub(r"(://[^\s?'\"]*)\?[^\s'\"]*", r"\1", text)


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
                require("gcsfs", "remote")
            else:
                require("aiohttp", "remote")
            client = fsspec.filesystem(kind, **settings)
            client.sizes = {}
            if kind == "s3":
                client.retries = 1  # tried again here, with the waits that are documented
            _clients[key] = client
        return _clients[key]


def _cache(remote: Remote) -> BlockCache:
    assert remote.cache is not None
    with _lock:
        key = (os.getpid(), remote.cache.folder)
        if key not in _caches:
            _caches[key] = BlockCache(remote.cache.folder, remote.cache.bytes)
        return _caches[key]


def _after_fork() -> None:
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)
