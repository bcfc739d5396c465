"""Who decodes: worker processes that write into shared memory, or threads of this process."""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
    def wait(self, *, block: bool = True) -> Finished: ...
    def close(self) -> None: ...


class Processes:
    """Worker processes; the batch memory is anonymous and shared, gone when all have ended."""

    def __init__(
        self, workers: int, formats: Sequence[VideoFormat], shape: tuple[int, int, int, int]
    ) -> None:
        length = int(np.prod(shape, dtype=np.int64))
        fd = os.memfd_create("matinee-batches", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, length)
            self.memory = np.frombuffer(mmap.mmap(fd, length), np.uint8).reshape(shape)
            target = "matinee.data.decode_job:DecodeJob"
            self._pool = WorkerPool(workers, target, (tuple(formats), fd, shape), pass_fds=(fd,))
        finally:
            os.close(fd)  # the mappings keep the memory
        self.pids = self._pool.pids

    def submit(self, number: int, job: ClipJob) -> None:
        self._pool.submit(number, job)

    def wait(self, *, block: bool = True) -> Finished:
        """What is done; with `block`, wait until that is at least one clip.

        Raises:
            WorkerDied: a worker ended; the pool is of no further use.
        """
        finished: Finished = []
        while True:
            for result in self._pool.results(None if block else 0):
                if result.died:
                    raise WorkerDied(f"a decoding worker died: {result.died}")
                if result.error is not None:
                    raise result.error
                finished.append((result.job, result.value))
            if finished or not block:
                return finished

    def close(self) -> None:
        self._pool.close()


class Threads:
    """Threads of this process: no start-up; a busy Python loop starves them.

    Each decoded frame waits for the interpreter's lock, which a loop in pure Python gives up only
    every 5 ms.
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

    def wait(self, *, block: bool = True) -> Finished:
        """What is done; with `block`, wait until that is at least one clip."""
        done = [self._done.get()] if block else []
        with contextlib.suppress(queue.Empty):
            while True:
                done.append(self._done.get_nowait())
        return [(number, future.result()) for number, future in done]

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
