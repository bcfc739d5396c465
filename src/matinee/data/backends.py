"""Who decodes: worker processes that write into shared memory, or threads of this process."""

from __future__ import annotations

import mmap
import os
import queue
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from matinee.data.decode_job import ClipJob, DecodeJob
from matinee.errors import WorkerDied
from matinee.media.packets import VideoFormat
from matinee.workers import WorkerPool

Finished = list[tuple[int, str | None]]  # (job number, None or why the clip could not be read)


class Backend(Protocol):
    """Decodes clips into `memory` [slots, rows, T, bytes of a frame]."""

    memory: NDArray[np.uint8]

    def submit(self, number: int, job: ClipJob) -> None: ...
    def wait(self) -> Finished: ...
    def close(self) -> None: ...


class Processes:
    """Worker processes; the batch memory is anonymous and shared, gone when all have ended."""

    def __init__(
        self, workers: int, formats: Sequence[VideoFormat], shape: tuple[int, int, int, int]
    ) -> None:
        length = int(np.prod(shape, dtype=np.int64))
        self._fd = _anonymous_file(length)
        self.memory = np.frombuffer(mmap.mmap(self._fd, length), np.uint8).reshape(shape)
        self._pool = WorkerPool(
            workers,
            "matinee.data.decode_job:DecodeJob",
            (tuple(formats), self._fd, shape),
            pass_fds=(self._fd,),
        )
        self.pids = self._pool.pids

    def submit(self, number: int, job: ClipJob) -> None:
        self._pool.submit(number, job)

    def wait(self) -> Finished:
        """Block until at least one clip is done.

        Raises:
            WorkerDied: a worker ended; the pool is of no further use.
        """
        finished: Finished = []
        while not finished:
            for result in self._pool.results():
                if result.died:
                    raise WorkerDied(f"a decoding worker died: {result.died}")
                if result.error is not None:
                    raise result.error
                finished.append((result.job, result.value))
        return finished

    def close(self) -> None:
        self._pool.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Threads:
    """Threads of this process: no start-up, no copies; a busy Python loop starves them.

    See DESIGN: each decoded frame waits for the interpreter's lock.
    """

    def __init__(
        self, workers: int, formats: Sequence[VideoFormat], shape: tuple[int, int, int, int]
    ) -> None:
        self.memory = np.zeros(shape, np.uint8)
        self._decode = DecodeJob(formats, self.memory, shape)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="matinee-decode")
        self._done: queue.SimpleQueue[tuple[int, Future[str | None]]] = queue.SimpleQueue()

    def submit(self, number: int, job: ClipJob) -> None:
        future = self._pool.submit(self._decode, job)
        future.add_done_callback(lambda done: self._done.put((number, done)))

    def wait(self) -> Finished:
        """Block until at least one clip is done."""
        number, future = self._done.get()
        return [(number, future.result())]

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _anonymous_file(length: int) -> int:
    """A file descriptor of `length` zero bytes in memory that no name points to."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("matinee-batches", os.MFD_CLOEXEC)
    else:
        fd, name = tempfile.mkstemp()
        Path(name).unlink()
    os.ftruncate(fd, length)
    return fd
