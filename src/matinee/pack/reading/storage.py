"""Where a pack lies: paths and addresses, what of them may be shown, reading local files.

Decoding workers import this module and open what they read themselves; it imports neither fsspec
nor pyarrow.

# Note [Remote packs]
A pack opens from a folder, `s3://`, `gs://` or `http(s)://`. Its tables are read when it is opened;
of its video, a clip reads byte ranges:

- A chunk of up to 4 MiB with its packet table behind it comes whole, in one request, where the clip
  spans a quarter of it or more, where it has no more than 256 KiB, or where a cache keeps it for
  clips to come. Chunks that follow each other come together, up to 4 MiB. A request costs about 3
  ms of a processor in buckets and 0.4 over HTTP, a megabyte 1 to 2.5, and bandwidth is finite.
- Else the table comes first, and then the packets of the clip, in one request if they lie within
  256 KiB of each other; tables of the last 256 chunks are kept.
- The chunks of one clip are read at the same time, up to 16 requests at once and 64 MiB a clip.

A request that fails in a way that may pass (no connection, a dropped one, 30 s of silence, less
than 50 KB/s after 30 s, HTTP 408, 429 and 5xx) is made again after 0.5, 1, 2, 4 and 8 s; what
cannot pass (401, 403, 404, a wrong certificate, …) is told at once. The size of every file is
compared with the one in the pack's tables: over HTTP with each answer, in buckets once a file and
process. Cached bytes that turn out to be wrong are dropped, and read once more.

A server is asked for what lies below the pack's own address only, and never followed elsewhere.
Credentials come from where the libraries look for them (environment, profiles, `~/.netrc` aside),
or stand in the address; they travel to workers, and never into a message.
"""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from matinee.errors import ConfigError, MediaError

SCHEMES = ("s3", "gs", "http", "https")
CACHE_BYTES = 64 << 30  # that a cache may hold where nothing else is said
_OPEN_FILES = 64


@dataclass(frozen=True)
class Cache:
    """A folder that keeps what was read from afar, up to so many bytes."""

    folder: str
    bytes: int


@dataclass(frozen=True)
class Remote:
    """What reading a remote pack's files takes besides their addresses.

    `stamp` stands for the content of the pack's tables; `user` and `query` are the secret parts of
    its address.
    """

    stamp: str = ""
    cache: Cache | None = None
    user: str = field(default="", repr=False)
    query: str = field(default="", repr=False)

    def whole(self, address: str) -> str:
        """A public address with its secret parts, to be asked for."""
        scheme, _, rest = address.partition("://")
        return f"{scheme}://{self.user}{rest}{self.query}"


class Unread(MediaError):
    """Bytes of a remote file did not come: nothing is said about their content."""


@dataclass(frozen=True)
class Range:
    """Bytes of a remote file; `file_size` is how long the whole file has to be (0: any)."""

    file: str
    file_size: int
    offset: int
    length: int


def is_address(path: object) -> bool:
    """Whether a path is an address of something remote."""
    return isinstance(path, str) and "://" in path


def split_address(address: str) -> tuple[str, Remote]:
    """The public part of a pack's address, without a slash at the end, and what is secret.

    Raises:
        ConfigError: of another kind than those that can be read, or malformed.
    """
    scheme, _, rest = address.partition("://")
    scheme = scheme.lower()
    if scheme not in SCHEMES:
        raise ConfigError(
            f"{scheme}://…: packs open from a folder, {', '.join(f'{s}://' for s in SCHEMES)}"
        )
    user = query = ""
    if scheme in ("http", "https"):
        try:
            parts = urlsplit(address)
            _ = parts.port  # looks at it
        except ValueError:  # its text may hold a password
            shown = rest.partition("?")[0].rpartition("@")[2]
            raise ConfigError(f"{scheme}://{shown}: its host or port is malformed") from None
        at = parts.netloc.rpartition("@")
        user = f"{at[0]}@" if at[1] else ""
        query = f"?{parts.query}" if parts.query else ""
        rest = at[2] + parts.path
    elif "@" in rest.partition("/")[0]:
        raise ConfigError(
            f"{scheme}://…@…: credentials of a bucket come from the environment, not its address"
        )
    place = rest.rstrip("/")
    if not place.partition("/")[0]:
        raise ConfigError(f"{scheme}://{place}: names no server or bucket")
    return f"{scheme}://{place}", Remote(user=user, query=query)


def below(root: str, name: str) -> str | None:
    """The address of a file of the pack at `root`, None for one that would lie outside it."""
    parts = name.split("/")
    odd = any(part in ("", ".", "..") for part in parts)
    if odd or "\\" in name or any(ord(c) < 32 for c in name):
        return None
    over_http = root.startswith("http")
    return f"{root}/{quote(name) if over_http else name}"


class LocalFiles:
    """Byte ranges of local files. Keeps a bounded number of them open; not thread-safe."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, int] = OrderedDict()
        self._finalizer = weakref.finalize(self, _close_all, self._files)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Bytes offset … offset + length - 1.

        Raises:
            MediaError: gone, unreadable or too short.
        """
        fd = self._files.get(path)
        if fd is None:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise MediaError(f"cannot open it: {error.strerror}") from None
            self._files[path] = fd
            if len(self._files) > _OPEN_FILES:
                os.close(self._files.popitem(last=False)[1])
        else:
            self._files.move_to_end(path)
        try:
            data = os.pread(fd, length, offset)
        except OSError as error:
            raise MediaError(f"cannot read it: {error.strerror}") from None
        if len(data) != length:
            raise MediaError(f"is cut short: {length} bytes at {offset} were expected")
        return data

    def close(self) -> None:
        """Close the files; also done when this is no longer used."""
        _close_all(self._files)


def _close_all(files: OrderedDict[str, int]) -> None:
    while files:
        os.close(files.popitem()[1])
