"""Getting the interpreter's lock back quickly.

# Note [Turns]
A thread that waits for the interpreter's lock asks the one that holds it to give it up only after
`sys.getswitchinterval()`, 5 ms. Every call into torch, NumPy or the system gives the lock up and
needs it back, so beside a thread of pure Python a batch with thirty such calls takes 150 ms longer.
While a loader prepares a batch it therefore asks for shorter turns.
"""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType

_INTERVAL = 50e-6  # seconds; changing threads costs a few microseconds


class ShortTurns:
    """While entered, by however many threads, the interpreter changes threads sooner."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, _INTERVAL))
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setswitchinterval(self._before)

    def begin_anew(self) -> None:
        """After a fork: whoever was inside stayed in the other process."""
        inside, self._inside, self._lock = self._inside, 0, threading.Lock()
        if inside:
            sys.setswitchinterval(self._before)


short_turns = ShortTurns()
"""Of the process, for the interval is the interpreter's."""
os.register_at_fork(after_in_child=short_turns.begin_anew)
