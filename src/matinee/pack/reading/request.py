"""One request for bytes of a remote file, and what its failure means. See Note [Remote packs]."""

from __future__ import annotations

import asyncio
import errno
import re
from dataclasses import dataclass
from typing import Any

from matinee.errors import first_line
from matinee.extras import require
from matinee.pack.reading.storage import Range, Remote

CONNECT_SECONDS, SILENT_SECONDS = 10, 30
SLOWEST = 50_000  # bytes a second, after SILENT_SECONDS
_REMEMBERED = 1 << 16  # sizes of files, in buckets
_PASSING = {408, 425, 429}
# What the libraries of buckets raise for settings and names that no other try would change.
_HOPELESS = {"ParamValidationError", "ProfileNotFound", "NoRegionError"}


class Refused(Exception):
    """An answer that another try would not change."""


class NotThere(Refused):
    """There is no such file."""


class Passing(Exception):
    """A failure that another try may not meet."""


@dataclass(frozen=True)
class Answer:
    data: bytes
    size: int  # of the whole file


async def ask(client: Any, remote: Remote, wanted: Range, whole: bool) -> Answer:
    """The bytes of a range; without `whole`, fewer where the file ends before.

    Raises:
        Refused, Passing: the reason, without the address.
    """
    # A server that drips is never silent, and would be waited for for ever.
    seconds = SILENT_SECONDS + wanted.length / SLOWEST
    try:
        return await asyncio.wait_for(_ask_service(client, remote, wanted, whole), seconds)
    except TimeoutError:
        raise Passing(
            f"slower than {SLOWEST // 1000} KB/s, {wanted.length} bytes in {seconds:.0f} s"
        ) from None


async def _ask_service(client: Any, remote: Remote, wanted: Range, whole: bool) -> Answer:
    if wanted.file.startswith("http"):
        answer = await _ask_http(client, remote, wanted)
    else:
        answer = await _ask_bucket(client, wanted)
    if wanted.file_size and answer.size != wanted.file_size:
        raise Refused(
            f"has {answer.size} bytes where the pack's tables say {wanted.file_size}: it was "
            "replaced or is damaged"
        )
    if len(answer.data) != wanted.length and (whole or len(answer.data) != answer.size):
        raise Passing(f"{len(answer.data)} of {wanted.length} bytes came")
    return answer


# --- web servers ------------------------------------------------------------------------------


async def _ask_http(client: Any, remote: Remote, wanted: Range) -> Answer:
    aiohttp = require("aiohttp", "remote")
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
        url = client.encode_url(remote.whole(wanted.file))
        async with session.get(url, **settings) as response:
            size = _size_of(response, wanted)
            data = bytearray()
            async for part in response.content.iter_chunked(1 << 18):
                data += part
                if len(data) > wanted.length:
                    raise Refused("the server sends more bytes than it was asked for")
            return Answer(bytes(data), size)
    except (
        aiohttp.ClientConnectorSSLError, aiohttp.ClientConnectorCertificateError,
        ValueError, TypeError,  # of an address that no request can be made of
    ) as error:  # fmt: skip
        raise Refused(words(error)) from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Passing(words(error)) from None


def _size_of(response: Any, wanted: Range) -> int:
    """Size of the file of which an answer holds a part; anything else is an error."""
    status, headers = response.status, response.headers
    stated = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", headers.get("Content-Range", ""))
    if status == 206 and stated and int(stated[1]) == wanted.offset:
        return int(stated[2])
    if status in (200, 206):
        raise Refused(
            "the server ignores byte ranges (Range: bytes=…), without which a pack cannot be read "
            "from afar: copy the pack here, or serve it with a server such as nginx"
        )
    if status in (404, 410):
        raise NotThere
    if 300 <= status < 400:
        raise Refused(f"HTTP {status}: the server refers elsewhere; give the address it refers to")
    raise _failure(status, f"HTTP {status} {response.reason or ''}".strip())


def _failure(status: int, words: str) -> Exception:
    if status == 416:
        return Refused(f"{words}: the file is shorter than the pack's tables say")
    return (Passing if status >= 500 or status in _PASSING else Refused)(words)


# --- buckets ----------------------------------------------------------------------------------


async def _ask_bucket(client: Any, wanted: Range) -> Answer:
    try:
        size = client.sizes.get(wanted.file)
        if size is None:
            if len(client.sizes) >= _REMEMBERED:
                client.sizes.clear()
            look = client._get_object if wanted.file.startswith("gs:") else client._info
            size = client.sizes[wanted.file] = int((await look(wanted.file))["size"])
        end = min(wanted.offset + wanted.length, size)
        return Answer(await client._cat_file(wanted.file, start=wanted.offset, end=end), size)
    except FileNotFoundError:
        raise NotThere from None
    except PermissionError as error:
        raise Refused(f"access is denied: {words(error)}") from None
    except Exception as error:  # the clients of the services raise errors of their own kinds
        if isinstance(error, OSError) and error.errno in (errno.EINVAL, errno.ENOENT):
            raise Refused(words(error)) from None
        if "Credentials" in type(error).__name__:
            raise Refused(
                "no credentials: set those of the service, or FSSPEC_S3_ANON=true for a public "
                "bucket"
            ) from None
        if type(error).__name__ == "HttpError" and str(getattr(error, "code", "")).isdigit():
            status = int(error.code)  # type: ignore[attr-defined]
            raise _failure(status, f"HTTP {status} ({words(error)})") from None
        if isinstance(error, OSError) and str(error).startswith("Forbidden"):  # gcsfs's HTTP 403
            raise Refused(f"access is denied: {words(error)}") from None
        if isinstance(error, ValueError | TypeError) or type(error).__name__ in _HOPELESS:
            raise Refused(words(error)) from None
        raise Passing(words(error)) from None


def words(error: BaseException) -> str:
    """What an error says, without what is secret in the addresses it names."""
    if isinstance(error, TimeoutError):
        return f"no answer in {SILENT_SECONDS} s"
    text = f"{type(error).__name__}: {first_line(error)}"
    text = re.sub(r"://[^/\s]*@", "://", text)
    return re.sub(r"(://[^\s?'\"]*)\?[^\s'\"]*", r"\1", text)
