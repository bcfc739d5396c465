"""Share of time that a process's interpreter lock is held, sampled from outside.

CPython keeps in its runtime state whether some thread holds the lock. Another process reads that
word many thousand times a second from /proc/PID/mem: the observed one is neither stopped nor
slowed, and nothing has to be guessed from waiting times. Where the word lies differs between
versions, so it is searched for: a word that is never 0 while a thread computes in Python, and
always 0 while all sleep. `calibrate` then checks it against a thread that holds the lock for a
known share of time.

    with Observed("def work(): …") as process: process.share(5.0)
"""

from __future__ import annotations

import ctypes
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

_LENGTH = 256 << 10  # bytes of the runtime state that are searched
_PROGRAM = """
import sys, threading, time
def computing(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end: pass
def partly(seconds, share):
    # Holds the lock while it computes, gives it up while it sleeps; the clock says how much.
    held, begin = 0.0, time.perf_counter()
    while (start := time.perf_counter()) - begin < seconds:
        computing(0.004 * share / (1 - share))
        held += time.perf_counter() - start
        time.sleep(0.004)
    return held / (time.perf_counter() - begin)
{setup}
print('ready', flush=True)
for line in sys.stdin:
    result = eval(line)
    print(repr(result), flush=True)
"""


class Observed:
    """A Python process that evaluates expressions on demand and is observed meanwhile.

    Args:
        setup: code that it runs first.
        core: it runs on this core alone.
    """

    def __init__(self, setup: str = "", core: int | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.replace("{setup}", setup)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise SystemExit("the observed process did not start")
        if core is not None:
            os.sched_setaffinity(self._process.pid, {core})
        self._memory = os.open(f"/proc/{self._process.pid}/mem", os.O_RDONLY)
        self._at = self._find()

    def evaluate(self, expression: str) -> Any:
        """What the process makes of an expression."""
        self._ask(expression)
        return self._answer()

    def share(self, expression: str) -> tuple[float, Any]:
        """Share of time the lock is held while an expression is evaluated, and its value."""
        self._ask(expression)
        held = count = 0
        ready = select.poll()
        ready.register(self._process.stdout, select.POLLIN)  # type: ignore[arg-type]
        while not ready.poll(0):
            for _ in range(200):
                held += os.pread(self._memory, 8, self._at) != bytes(8)
                count += 1
            time.sleep(0.0005)  # also against a beat with what is observed
        return held / count, self._answer()

    def calibrate(self, wanted: float = 0.3) -> tuple[float, float]:
        """Measured share of a thread that holds the lock for a known one, and that one."""
        return self.share(f"partly(3.0, {wanted})")

    def _find(self) -> int:
        start = self.evaluate(
            "__import__('ctypes').addressof("
            "__import__('ctypes').c_char.in_dll(__import__('ctypes').pythonapi, '_PyRuntime'))"
        )
        length = _mapped(self._process.pid, start)
        held = self._looks("computing(4.0)", start, length)
        free = self._looks("time.sleep(4.0)", start, length)
        words = range(0, length - 7, 8)
        fitting = [
            at for at in words
            if all(look[at : at + 8] != bytes(8) for look in held)
            and all(look[at : at + 8] == bytes(8) for look in free)
        ]  # fmt: skip
        if not fitting:
            raise SystemExit("no word of the interpreter's state says who holds the lock")
        return int(start + fitting[0])

    def _looks(self, expression: str, start: int, length: int) -> list[bytes]:
        self._ask(expression)
        time.sleep(1.0)
        looks = []
        for _ in range(30):
            looks.append(os.pread(self._memory, length, start))
            time.sleep(0.01)
        self._answer()
        return looks

    def _ask(self, expression: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return eval(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._memory)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def _mapped(pid: int, start: int) -> int:
    """Bytes from `start` that are mapped in one piece, up to `_LENGTH`."""
    end = start
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        low, high = (int(part, 16) for part in line.split()[0].split("-"))
        if low <= end < high:
            end = high
    return min(end - start, _LENGTH)


if __name__ == "__main__":
    assert ctypes.sizeof(ctypes.c_void_p) == 8
    with Observed() as observed:
        for wanted in (0.1, 0.3, 0.7):
            print("measured {:.3f}, by its own clock {:.3f}".format(*observed.calibrate(wanted)))
