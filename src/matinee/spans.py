"""Named stretches of time inside a loop: where a step goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Spans:
    """Adds up wall-clock seconds by name between two calls of `take`."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - begin
            self._seconds[name] = self._seconds.get(name, 0.0) + spent

    def take(self) -> dict[str, float]:
        """Seconds by name since the last call."""
        taken, self._seconds = self._seconds, {}
        return taken
