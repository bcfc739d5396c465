"""Who decodes: worker processes that write into shared memory, or threads of this process."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from matinee.data.decode_cost import Decoded
from matinee.data.decode_job import ClipJob, DecodeJob
from matinee.data.decoders import Decoders
from matinee.data.job_threads import Finished, JobThreads
from matinee.data.nvdec import GpuDecoders
from matinee.errors import WorkerDied
from matinee.media.convert import frame_bytes
from matinee.media.packets import VideoFormat
from matinee.workers import WorkerPool

# NumPy's linear algebra, which no decoder uses, would start a thread a core in every process.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Backend(Protocol):
    """Decodes clips into `memory` [slots, rows, T, bytes of a frame], or on a GPU into RGB there.

    `lost`: numbers of the jobs that workers were on when they died.
    """

    @property
    def memory(self) -> NDArray[np.uint8] | Tensor: ...
    @property
    def lost(self) -> Sequence[int]: ...

    def submit(self, jobs: Sequence[tuple[int, ClipJob]]) -> None: ...
    def wait(self, *, block: bool = True) -> Finished: ...
    def close(self) -> None: ...


def start_backend(
    decoders: Decoders,
    formats: Sequence[VideoFormat],
    shape: tuple[int, int, int],
    size: tuple[int, int],
    device: torch.device,
) -> Backend:
    """Start the processes and threads of a plan.

    Args:
        shape: of the batch memory: slots, rows, T.
        size: (height, width) of the clips.
        device: where the GPU's decoder leaves them.
    """
    if decoders.nvdec:
        return GpuDecoders(decoders.threads, formats, shape, size, device)
    pixels = (*shape, frame_bytes(size))
    if decoders.processes:
        return Processes(decoders, formats, pixels)
    return Threads(decoders.threads, formats, pixels)


class Processes:
    """Worker processes; the batch memory is anonymous and shared, gone when all have ended."""

    def __init__(
        self, decoders: Decoders, formats: Sequence[VideoFormat], shape: tuple[int, int, int, int]
    ) -> None:
        length = int(np.prod(shape, dtype=np.int64))
        fd = os.memfd_create("matinee-batches", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, length)
            self.memory = np.frombuffer(mmap.mmap(fd, length), np.uint8).reshape(shape)
            self._pool = WorkerPool(
                decoders.processes, "matinee.data.decode_job:DistantDecodeJob",
                (tuple(formats), fd, shape), pass_fds=(fd,), threads=decoders.threads,
                environment=_ENVIRONMENT,
            )  # fmt: skip
        finally:
            os.close(fd)  # the mappings keep the memory
        self.pids = self._pool.pids
        self.lost: list[int] = []

    def submit(self, jobs: Sequence[tuple[int, ClipJob]]) -> None:
        """Numbered jobs, which one worker does in turn."""
        self._pool.submit_together(jobs)

    def wait(self, *, block: bool = True) -> Finished:
        """What is done; with `block`, wait until that is at least one clip.

        Raises:
            WorkerDied: a worker ended; the pool is of no further use.
        """
        finished: Finished = []
        died = ""
        while True:
            for result in self._pool.results(None if block else 0):
                if result.died:
                    died = died or result.died
                    self.lost += [result.job] if result.job >= 0 else []
                elif result.error is not None:
                    result.error.add_note(result.trace)  # where in the worker it happened
                    raise result.error
                else:
                    finished.append((result.job, Decoded.unpacked(result.value)))
            if died:
                raise WorkerDied(f"a decoding worker died: {died}")
            if finished or not block:
                return finished

    def close(self) -> None:
        self._pool.close()


class Threads:
    """Threads of this process: no start-up; a busy Python loop starves them.

    Each decoded frame waits for the interpreter's lock, which a loop in pure Python gives up only
    every 5 ms.
    """

    lost = ()

    def __init__(
        self, threads: int, formats: Sequence[VideoFormat], shape: tuple[int, int, int, int]
    ) -> None:
        self.memory = np.zeros(shape, np.uint8)
        decode = DecodeJob(formats, self.memory, shape)
        self._threads = JobThreads(threads, decode, "matinee-decode")
        self.submit, self.wait = self._threads.submit, self._threads.wait
        self.close = self._threads.close
