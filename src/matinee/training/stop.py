"""SIGINT, SIGTERM and SIGUSR1 ask a run to save and end; a second SIGINT ends it at once."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

# Of one Ctrl-C, a rank may hear from the terminal and from its launcher.
_SAME_S = 3.0


class StopRequest:
    """While entered, signals set `name` instead of ending the process."""

    def __init__(self, *, launched: bool = False) -> None:
        """launched: by torchrun or Slurm; SIGINT again within 3 s then counts as the same."""
        self.name = ""
        self._before: dict[int, Any] = {}
        self._again_after = _SAME_S if launched else 0.0
        self._since = 0.0

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.name:
            self.name, self._since = signal.Signals(number).name, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._since >= self._again_after:
            raise KeyboardInterrupt

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
