"""What a decoding worker does with one clip: read, decode, write into its rows. No torch here."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matinee.errors import MediaError
from matinee.media.decode import Box
from matinee.media.packets import VideoFormat
from matinee.pack.reading.clip import ClipPart, ClipReader


@dataclass(frozen=True)
class ClipJob:
    """One clip to decode once, each of its `crops` (row, box) into a row of slot `slot`."""

    slot: int
    parts: tuple[ClipPart, ...]
    crops: tuple[tuple[int, Box], ...]
    size: tuple[int, int]


class DecodeJob:
    """Decodes clips into a batch memory `[slots, rows, T, bytes of a frame]`, from any thread.

    Returns None for a clip that was read, else the reason why it could not be; its rows are then
    zeroed.
    """

    def __init__(
        self,
        formats: Sequence[VideoFormat],
        memory: int | NDArray[np.uint8],
        shape: tuple[int, int, int, int],
    ) -> None:
        """`memory` is the array itself, or an inherited file descriptor of it."""
        self._formats = formats
        self._local = threading.local()
        if isinstance(memory, int):
            mapped = mmap.mmap(memory, int(np.prod(shape, dtype=np.int64)))
            memory = np.frombuffer(mapped, np.uint8)
        self._memory = memory.reshape(shape)

    def __call__(self, job: ClipJob) -> str | None:
        if not hasattr(self._local, "reader"):
            self._local.reader = ClipReader(self._formats)
        reader: ClipReader = self._local.reader
        rows = self._memory[job.slot]
        try:
            crops = [(rows[row], box) for row, box in job.crops]
            reader.read_crops(job.parts, crops, size=job.size)
        except MediaError as error:
            for row, _ in job.crops:
                rows[row].fill(0)
            return str(error)
        return None
