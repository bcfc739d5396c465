"""Runs mutated inputs in a process of its own and says which one killed or stopped it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

CASES = Path(__file__).with_name("fuzz_cases.py")
STILL = 120  # seconds without a new case: it hangs (a busy machine may be slow)


@dataclass(frozen=True)
class Outcome:
    """How many mutated inputs were run, and how many of them were accepted as sound."""

    run: int
    accepted: int
    peak_mb: int


def how_many(usual: int) -> int:
    """The number of cases of one kind: MATINEE_FUZZ if it is set."""
    return int(os.environ.get("MATINEE_FUZZ", usual))


def survive(kind: str, folder: Path, count: int, *, first: int = 0) -> Outcome:
    """Run cases `first` … of a kind; fails with the number of one that ends its process."""
    command = [sys.executable, "-X", "faulthandler", str(CASES), kind, str(folder)]
    with subprocess.Popen(
        [*command, str(first), str(count)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        said, errors = b"", b""
        streams = {process.stdout.fileno(): "out", process.stderr.fileno(): "err"}
        last = time.monotonic()
        while streams:
            ready, _, _ = select.select(list(streams), [], [], 5)
            for handle in ready:
                part = os.read(handle, 1 << 16)
                if not part:
                    del streams[handle]
                elif streams[handle] == "out":
                    said, last = said[-200:] + part, time.monotonic()
                else:
                    errors = (errors + part)[-20_000:]
            if time.monotonic() - last > STILL:
                process.kill()
                raise AssertionError(f"{kind}: case {_number(said)} hangs")
        code = process.wait()
    if code:
        how = f"signal {-code}" if code < 0 else f"status {code}"
        text = errors.decode(errors="replace")
        raise AssertionError(f"{kind}: case {_number(said)} ended the process ({how})\n{text}")
    result = json.loads(said.splitlines()[-1])
    return Outcome(count, result["accepted"], result["peak_mb"])


def _number(said: bytes) -> str:
    lines = said.decode(errors="replace").split()
    return lines[-1] if lines else "none (the process did not begin)"
