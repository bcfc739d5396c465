"""What a decoding worker does with one clip: read, decode, write into its rows. No torch here."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matinee.data.decode_cost import Decoded, cost_of
from matinee.errors import MediaError
from matinee.media.decode import Box
from matinee.media.packets import VideoFormat
from matinee.media.work import Work
from matinee.pack.reading.clip import ClipPart, ClipReader


@dataclass(frozen=True)
class ClipJob:
    """One clip to decode once, each of its `crops` (row, box) into a row of slot `slot`.

    `traced`: tell also when each part of the work began and ended.
    """

    slot: int
    parts: tuple[ClipPart, ...]
    crops: tuple[tuple[int, Box], ...]
    size: tuple[int, int]
    traced: bool = False


class DecodeJob:
    """Decodes clips into a batch memory `[slots, rows, T, bytes of a frame]`, from any thread.

    The rows of a clip that could not be read are zeroed.
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

    def __call__(self, job: ClipJob) -> Decoded:
        begin = time.monotonic()
        if not hasattr(self._local, "reader"):
            self._local.reader = ClipReader(self._formats)
        reader: ClipReader = self._local.reader
        work = reader.work = Work(stretches=job.traced)
        rows = self._memory[job.slot]
        failure = None
        try:
            crops = [(rows[row], box) for row, box in job.crops]
            reader.read_crops(job.parts, crops, size=job.size)
        except MediaError as error:
            for row, _ in job.crops:
                rows[row].fill(0)
            failure = str(error)
        return decoded(failure, work, begin)


class DistantDecodeJob:
    """A `DecodeJob` for another process: results are packed for their way."""

    def __init__(self, *args: Any) -> None:
        self._decode = DecodeJob(*args)

    def __call__(self, job: ClipJob) -> tuple[Any, ...]:
        return self._decode(job).packed()


def decoded(failure: str | None, work: Work, begin: float) -> Decoded:
    """The result of a job that ends now, on this thread; `begin` is of `time.monotonic()`."""
    end = time.monotonic()
    cost = cost_of(work, clips=0 if failure else 1, busy_s=end - begin)
    who = (os.getpid(), threading.get_native_id())
    return Decoded(failure, cost, begin, end, who, tuple(work.stretches or ()))
