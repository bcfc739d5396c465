"""One checkpoint as a file: written whole, and read only if every byte is as it was written.

Torch reads damaged numbers without noticing: it skips the checksums (CRC-32) of the archive that it
wrote. They are compared first, at the price of reading the file twice.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch

from matinee.errors import first_line
from matinee.files import whole_file

State = dict[str, Any]

HELD = frozenset({"state", "vocabulary"})  # what every checkpoint has, beside what a task adds


class Unreadable(Exception):
    """Why a file is no checkpoint, for one sentence."""


def write_checkpoint(state: State, path: Path) -> None:
    """Write a state of tensors on the CPU straight to the disk, whole or not at all.

    Raises:
        OSError: it names the file.
    """
    with whole_file(path) as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            # Torch ends its archive in any case, which fails again, without the reason.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def read_checkpoint(path: Path) -> State:
    """A state as it was written, tensors on the CPU. No code in the file is run.

    Raises:
        FileNotFoundError: it is gone.
        Unreadable: it is damaged, or something else.
    """
    try:
        with path.open("rb") as file:  # once: a file that is replaced meanwhile stays the same
            with zipfile.ZipFile(file) as archive:
                broken = archive.testzip()
            if broken is not None:
                raise Unreadable(f"the checksum of {broken} differs")
            file.seek(0)
            state = torch.load(file, map_location="cpu", weights_only=True)
    except (FileNotFoundError, Unreadable):
        raise
    except IsADirectoryError:
        raise Unreadable("it is a folder") from None
    except OSError as error:
        raise Unreadable(error.strerror or first_line(error)) from None
    except Exception as error:  # zip, pickle and torch errors have no common base
        raise Unreadable(first_line(error)) from None
    if not isinstance(state, dict) or not set(state) >= HELD:
        raise Unreadable("it is no checkpoint of matinee")
    return state


def peek_step(path: Path) -> int | None:
    """How many steps a checkpoint has done, without reading its tensors; None if it is damaged."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return int(state["state"]["step"])
    except Exception:  # zip, pickle and torch errors have no common base
        return None
