"""Writing files: whole or not at all, and errors that name the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Errors of the system inside carry `path`; a failed write has no file name of its own."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write aside, flush to disk, rename: the file is there whole or not at all."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with naming(path):
        try:
            with aside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name as well
        finally:
            os.close(folder)
