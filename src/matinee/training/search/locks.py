"""Who runs which trial: locks that end with their process, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Locks:
    """Locks in one file that processes share: one for decisions, one for each trial.

    # Note [Locks, not heartbeats]
    The kernel drops a process's locks when it ends, also by SIGKILL, so a trial that is running
    and not locked is known to be dead at once, and a slow one is never taken for dead. SQLite keeps
    its database sound by locks of the same kind: where these do not work, it does not either.
    """

    def __init__(self, path: Path) -> None:
        # Closing any descriptor of the file would drop all of the process's locks: there is one.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Only one process at a time is inside."""
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, 0)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, 0)

    def hold(self, trial: int) -> bool:
        """Take a trial's lock; False if another process has it."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, trial + 1)
        except OSError:
            return False
        return True

    def release(self, trial: int) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, trial + 1)

    def close(self) -> None:
        os.close(self._file)
