"""The place of a pack, as the process that opens it sees it: its tables, and its files checked."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from matinee.errors import ConfigError, MediaError, PackError
from matinee.pack.format import FILES, MANIFEST, check_manifest, read_manifest
from matinee.pack.reading import remote
from matinee.pack.reading.selection import digest_of
from matinee.pack.reading.storage import Cache, Remote, below, is_address, split_address
from matinee.pack.reading.table_file import TableFile, whole

_LOOKED_AT = 10_000  # files that are looked at when a pack is opened
_MAX_MANIFEST = 256 << 20
_MAX_TABLE = 64 << 30


class Place(Protocol):
    """A folder or an address that holds a pack."""

    @property
    def path(self) -> Path | str:
        """As it is shown."""

    def manifest(self) -> dict[str, Any]:
        """The content of pack.json, checked."""

    def table(self, name: str, schema: pa.Schema) -> TableFile:
        """One of its tables."""

    def files(self) -> Files:
        """The files that its chunks lie in."""

    def seal(self) -> Remote | None:
        """What reading a clip takes besides its place, now that the tables were read."""

    def digest(self) -> str:
        """Stands for the content of manifest and tables."""


class Files(Protocol):
    """The files of a pack, numbered. `sizes` in bytes, int64 [files]."""

    sizes: NDArray[np.int64]

    def __getitem__(self, number: int) -> str:
        """Its path or address."""


def open_place(path: str | Path, *, cache: str | Path | None, cache_bytes: int) -> Place:
    """The place at a path or address.

    Raises:
        ConfigError: an address that cannot be read, or a cache that cannot be used.
    """
    if not isinstance(path, str) or not is_address(path):
        if cache is not None:
            raise ConfigError(f"cache {cache}: {path} is a local pack, which needs none")
        return Folder(Path(path))
    return Address(path, _make_cache(cache, cache_bytes))


def _make_cache(folder: str | Path | None, limit: int) -> Cache | None:
    if folder is None:
        return None
    if limit < 1 << 24:
        raise ConfigError(f"cache_bytes {limit}: at least 16 MiB")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cache {folder} cannot be made: {error.strerror}") from None
    return Cache(str(Path(folder).resolve()), limit)


class Folder:
    """A pack in a local folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def manifest(self) -> dict[str, Any]:
        return read_manifest(self.path)

    def table(self, name: str, schema: pa.Schema) -> TableFile:
        return TableFile(self.path / name, schema)

    def files(self) -> LocalFileTable:
        return LocalFileTable(self.path, self.table("files.parquet", FILES))

    def seal(self) -> None:
        return None

    def digest(self) -> str:
        return digest_of(self.path)


class LocalFileTable:
    """The files of a local pack. Up to 10,000 are looked at when it is opened, more when a clip in
    them is first located: one that is gone or changed is an error.
    """

    def __init__(self, folder: Path, table: TableFile) -> None:
        self._folder, self._root = folder, os.path.realpath(folder)
        self._paths = whole(table.column("path"))
        self.sizes, self._times = table.numbers("size"), table.numbers("mtime_ns")
        self._seen = np.zeros(len(self._paths), bool)
        if len(self._paths) <= _LOOKED_AT:
            for number in range(len(self._paths)):
                self._look(number)

    def __getitem__(self, number: int) -> str:
        if not self._seen[number]:
            self._look(number)
        return os.path.join(self._root, self._paths[number].as_py())  # noqa: PTH118  # fast

    def _look(self, number: int) -> None:
        name = self._paths[number].as_py()
        own = not name.startswith("/")
        file = f"{self._root}/{name}" if own else name
        try:
            if own and not os.path.realpath(file).startswith(self._root.rstrip("/") + "/"):
                raise PackError(f"{self._folder} refers to {name!r}, outside itself")
            stat = os.stat(file)  # noqa: PTH116  # thousands of files
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise PackError(f"{file}, which {self._folder} needs, is gone: {reason}") from None
        size = int(self.sizes[number])
        if own and stat.st_size != size:
            raise PackError(f"{file} is damaged: it has {stat.st_size} bytes, {size} were written")
        if not own and (stat.st_size, stat.st_mtime_ns) != (size, int(self._times[number])):
            raise PackError(f"{file} changed since {self._folder} was made: index it again")
        self._seen[number] = True


class Address:
    """A pack in a bucket or behind a web server. `path` is its address without what is secret."""

    def __init__(self, address: str, cache: Cache | None) -> None:
        self.path, secrets = split_address(address)
        self._remote = replace(secrets, cache=cache)
        self._digest = hashlib.sha256()

    def manifest(self) -> dict[str, Any]:
        data = bytearray()
        try:
            remote.read_file(self._remote, f"{self.path}/{MANIFEST}", _MAX_MANIFEST, data.extend)
        except remote.Gone:
            raise PackError(
                f"{self.path} is no pack: it has no {MANIFEST} (image sets are read from local "
                "folders only)"
            ) from None
        except MediaError as error:
            raise PackError(str(error)) from None
        self._digest.update(data)
        return check_manifest(self.path, bytes(data))

    def table(self, name: str, schema: pa.Schema) -> TableFile:
        shown = f"{self.path}/{name}"
        sizes: list[int] = []
        try:
            return self._copy(name, shown, schema, sizes)
        except OSError as error:
            needs = f" {sizes[0]} bytes" if sizes else ""
            raise PackError(
                f"{shown} needs{needs} in the temporary folder {tempfile.gettempdir()} "
                f"({error.strerror}): make room there, or name another folder in TMPDIR"
            ) from None

    def _copy(self, name: str, shown: str, schema: pa.Schema, sizes: list[int]) -> TableFile:
        with tempfile.NamedTemporaryFile(prefix="matinee-table-") as copy:

            def room(size: int) -> None:
                sizes.append(size)
                os.posix_fallocate(copy.fileno(), 0, max(size, 1))  # before much is read

            def keep(data: bytes) -> None:
                self._digest.update(data)
                copy.write(data)

            try:
                remote.read_file(self._remote, shown, _MAX_TABLE, keep, room)
            except remote.Gone:
                raise PackError(f"{self.path} lacks {name}: the pack is damaged") from None
            except MediaError as error:
                raise PackError(str(error)) from None
            copy.flush()
            return TableFile(Path(copy.name), schema, shown)  # mapped: needs no name any more

    def files(self) -> RemoteFileTable:
        return RemoteFileTable(self.path, self.table("files.parquet", FILES))

    def seal(self) -> Remote:
        # What was cached of another pack at this address is then never taken.
        return replace(self._remote, stamp=self.digest())

    def digest(self) -> str:
        return self._digest.hexdigest()


class RemoteFileTable:
    """The files of a remote pack: all lie below its address. Sizes are compared when they are read.

    Raises:
        PackError: one lies elsewhere.
    """

    def __init__(self, root: str, table: TableFile) -> None:
        self._root, self._paths = root, whole(table.column("path"))
        self.sizes = table.numbers("size")
        for number in range(len(self._paths)):
            self[number]

    def __getitem__(self, number: int) -> str:
        name = self._paths[number].as_py()
        address = None if name.startswith("/") else below(self._root, name)
        if address is None:
            raise PackError(
                f"{self._root} refers to {name!r}, outside itself: only packs with their own video "
                "(matinee pack) can be read from afar"
            )
        return address
