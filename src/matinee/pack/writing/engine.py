"""Who does the jobs of packing: worker processes here, or a Ray cluster. One interface.

# Note [Engines]
An engine takes jobs and reports what becomes of them: `Advance` with every chunk, then one of
`Done`, `Broken` (the decoder brought its process down: the source is to blame) or `Lost` (someone
ended the process, or its machine went: the job may be given out again). Which engine does a job,
and when, leaves no trace in the pack.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from matinee.errors import MatineeError
from matinee.pack.profiles import Profile
from matinee.pack.writing.encode_job import PROGRESS, Job, Outcome
from matinee.workers import WorkerPool

# Signals by which a process ends through a fault of its own, not by someone's wish.
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


@dataclass(frozen=True)
class Advance:
    """A job has encoded `seconds` more of the `expected` ones."""

    key: int
    seconds: float
    expected: float


@dataclass(frozen=True)
class Done:
    """A job has ended."""

    key: int
    outcome: Outcome


@dataclass(frozen=True)
class Broken:
    """The decoder broke down on a job's source."""

    key: int
    how: str


@dataclass(frozen=True)
class Lost:
    """The process of a job was ended from outside; key -1 if it had no job."""

    key: int
    how: str


Event = Advance | Done | Broken | Lost


class Engine(Protocol):
    """Does jobs. `slots` is how many may usefully be given out at a time.

    `gives_again`: a job that was lost is given out once more, rather than ending the run.
    """

    gives_again: bool

    @property
    def slots(self) -> int: ...

    def submit(self, key: int, job: Job) -> None: ...

    def events(self, timeout: float) -> Iterator[Event]:
        """What happened since; waits for something at most `timeout` seconds."""
        ...

    def close(self) -> None:
        """End all work at once; nothing half-done is left to count."""
        ...


class LocalEngine:
    """Worker processes on this machine, which write into the staging folder themselves.

    Whoever ends one of them, or lets memory run out, does so again: the run then ends, and the same
    command continues.
    """

    gives_again = False

    def __init__(self, staging: Path, profile: Profile, workers: int) -> None:
        self._told, theirs = os.pipe()
        flags = fcntl.fcntl(self._told, fcntl.F_GETFL)
        fcntl.fcntl(self._told, fcntl.F_SETFL, flags | os.O_NONBLOCK)
        setup = (str(staging), profile, theirs)
        self._theirs = theirs  # for workers that are started in place of others
        self._pool = WorkerPool(
            workers, "matinee.pack.writing.encode_job:EncodeJob", setup, (theirs,)
        )
        self._left = b""
        self.slots = 2 * workers  # one at work, one at hand

    def submit(self, key: int, job: Job) -> None:
        self._pool.submit(key, (key, job))

    def events(self, timeout: float) -> Iterator[Event]:
        results = list(self._pool.results(timeout, restart=True))
        yield from self._advances()
        for result in results:
            if result.died:
                if result.job < 0 or result.signal not in _CRASHES:
                    yield Lost(result.job, result.died)
                else:
                    yield Broken(result.job, signal.Signals(result.signal).name)
            elif isinstance(result.error, OSError):
                raise result.error
            elif result.error is not None:
                raise MatineeError(f"packing failed: {result.error!r}\n{result.trace}")
            else:
                yield Done(result.job, result.value)

    def _advances(self) -> Iterator[Advance]:
        while True:
            try:
                data = os.read(self._told, 1 << 16)
            except BlockingIOError:
                return
            self._left += data
            whole = len(self._left) // PROGRESS.size * PROGRESS.size
            for record in PROGRESS.iter_unpack(self._left[:whole]):
                yield Advance(*record)
            self._left = self._left[whole:]

    def close(self) -> None:
        # Workers that are in the middle of a chunk would be waited for, one after the other.
        for pid in self._pool.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._pool.close()
        os.close(self._told)
        os.close(self._theirs)
