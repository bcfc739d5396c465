"""Writing files: whole or not at all, and errors that name the file.

# Note [Aside]
A file is written under another name beside its place (`NAME.PID.tmp`), flushed to disk, and
renamed. Whoever reads NAME, at any moment and after any crash, finds the file before or the file
after. A process that is killed leaves the file aside behind; nobody reads it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Errors of the system inside carry `path`; a failed write has no file name of its own."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, that takes the name `path` at the end. See Note [Aside].

    Where the block raises, `path` is left as it was and nothing stays aside.
    """
    aside = _aside(path)
    with naming(path):
        try:
            with aside.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        _flush_folder(path.parent)


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write `data` aside, flush to disk, rename: the file is there whole or not at all."""
    with whole_file(path) as file:
        file.write(data)


def link_whole(path: Path, target: str) -> None:
    """Make `path` a symbolic link to `target` (relative to its folder), in place of what it was."""
    aside = _aside(path)
    with naming(path):
        try:
            aside.unlink(missing_ok=True)
            aside.symlink_to(target)
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        _flush_folder(path.parent)


def remove_asides(folder: Path, names: re.Pattern[str]) -> None:
    """Remove what killed processes left aside of files whose names `names` matches wholly."""
    for found in folder.iterdir():
        name, _, process = found.name.removesuffix(".tmp").rpartition(".")
        if found.suffix == ".tmp" and process.isdecimal() and names.fullmatch(name):
            found.unlink(missing_ok=True)


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}.tmp")


def _flush_folder(folder: Path) -> None:
    """A new name is on disk once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
