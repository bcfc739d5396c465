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

from matinee.data.decode_job import ClipJob

Finished = list[tuple[int, str | None]]
"""(Job number, None or why the clip could not be read)."""

_Jobs = queue.SimpleQueue[tuple[int, ClipJob] | None]
_Done = queue.SimpleQueue[tuple[int, str | None, BaseException | None]]


class JobThreads:
    """`count` threads that do jobs in the order they came; `work` says why one failed, or None."""

    def __init__(self, count: int, work: Callable[[ClipJob], str | None], name: str) -> None:
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
        for _, _, error in done:
            if error is not None:
                raise error
        return [(number, failure) for number, failure, _ in done]

    def close(self) -> None:
        """End the threads; jobs that were not begun are dropped, requests elsewhere given up."""
        self._finalizer()
        remote = sys.modules.get("matinee.pack.reading.remote")  # that nothing local imports
        idents = frozenset(thread.ident for thread in self._threads if thread.ident is not None)
        with remote.abandoned(idents) if remote else contextlib.nullcontext():
            for thread in self._threads:
                thread.join()


def _serve(jobs: _Jobs, done: _Done, work: Callable[[ClipJob], str | None]) -> None:
    while (numbered := jobs.get()) is not None:
        number, job = numbered
        try:
            done.put((number, work(job), None))
        except BaseException as error:
            done.put((number, None, error))


def _dismiss(jobs: _Jobs, count: int) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            jobs.get_nowait()
    for _ in range(count):
        jobs.put(None)
