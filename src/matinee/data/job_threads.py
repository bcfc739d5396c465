"""Threads that decode clips, which an interrupt at any moment leaves in order.

No executor of the standard library: its locks are Python's, and a KeyboardInterrupt inside `submit`
leaves one of them taken, on which all its threads and `shutdown` then wait. `SimpleQueue` is made
in C, and an interrupt finds it whole.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Sequence

from matinee.data.decode_cost import Decoded
from matinee.data.decode_job import ClipJob

Finished = list[tuple[int, Decoded]]
"""(Job number, what became of it)."""

_Jobs = queue.SimpleQueue[tuple[int, ClipJob] | None]
_Done = queue.SimpleQueue[tuple[int, Decoded | BaseException]]


class JobThreads:
    """`count` threads that do jobs in the order they came."""

    def __init__(self, count: int, work: Callable[[ClipJob], Decoded], name: str) -> None:
        self._jobs: _Jobs = queue.SimpleQueue()
        self._done: _Done = queue.SimpleQueue()
        self._threads = [
            threading.Thread(
                target=_serve, args=(self._jobs, self._done, work), name=f"{name}_{i}", daemon=True
            )
            for i in range(count)
        ]
        # A loader that is forgotten leaves no clips to be decoded for nobody.
        self._finalizer = weakref.finalize(self, _dismiss, self._jobs, count)
        for thread in self._threads:
            thread.start()

    def submit(self, jobs: Sequence[tuple[int, ClipJob]]) -> None:
        """Numbered jobs, each for the next thread that is free."""
        for job in jobs:
            self._jobs.put(job)

    def wait(self, *, block: bool = True) -> Finished:
        """What is done; with `block`, wait until that is at least one clip."""
        done = [self._done.get()] if block else []
        with contextlib.suppress(queue.Empty):
            while True:
                done.append(self._done.get_nowait())
        finished: Finished = []
        for number, outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome
            finished.append((number, outcome))
        return finished

    def close(self) -> None:
        """End the threads; jobs that were not begun are dropped, requests elsewhere given up."""
        self._finalizer()
        remote = sys.modules.get("matinee.pack.reading.remote")  # that nothing local imports
        idents = frozenset(thread.ident for thread in self._threads if thread.ident is not None)
        with remote.abandoned(idents) if remote else contextlib.nullcontext():
            for thread in self._threads:
                thread.join()


def _serve(jobs: _Jobs, done: _Done, work: Callable[[ClipJob], Decoded]) -> None:
    while (numbered := jobs.get()) is not None:
        number, job = numbered
        try:
            done.put((number, work(job)))
        except BaseException as error:
            done.put((number, error))


def _dismiss(jobs: _Jobs, count: int) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            jobs.get_nowait()
    for _ in range(count):
        jobs.put(None)
