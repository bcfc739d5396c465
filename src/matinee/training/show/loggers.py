"""Where metrics go besides metrics.jsonl, and nothing there ends a run.

A tracker (`trackers.py`) knows one service. Here it is opened, fed from a thread of its own, and
given up when it fails.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any, Protocol

from matinee.errors import ConfigError, first_line
from matinee.files import write_whole
from matinee.training.show.trackers import TRACKERS, Opening, Tracker

_ROWS_WAITING = 10_000
_SECONDS_TO_END = 60.0


class Logger(Protocol):
    """Takes rows of metrics.jsonl."""

    def log(self, row: dict[str, Any]) -> None:
        """Neither waits nor fails."""

    def close(self) -> None:
        """Wait until all rows are written, for a minute at most."""


def check_loggers(names: Sequence[str]) -> None:
    """Refuse names nobody knows and packages that are not installed.

    Raises:
        ConfigError: an unknown name.
        MissingExtra: its package is absent.
    """
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"--run.loggers {name}: there are {', '.join(TRACKERS)}")
        TRACKERS[name].check()


def open_loggers(
    names: Sequence[str],
    folder: Path,
    config: dict[str, Any],
    resume_step: int | None,
    say: Callable[[str], None] = warnings.warn,
) -> list[Logger]:
    """Open the loggers of a run; a run that goes on continues in the same places.

    Args:
        folder: of the run; loggers.json there remembers under which ids trackers know it.
        resume_step: steps that are done already; None for a new run.
        say: told in one line what went wrong, from any thread. Each logger says it once and is then
            given up; training goes on.

    Raises:
        ConfigError: an unknown name, or one cannot be opened for a new run.
        MissingExtra: its package is absent.
    """
    check_loggers(names)
    if not names:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "loggers.json"
    ids: dict[str, str] = {}
    if resume_step is not None and file.exists():
        ids = json.loads(file.read_text())
    loggers: list[Logger] = []
    for name in dict.fromkeys(names):
        opening = Opening(folder, config, resume_step, ids.get(name))
        logger = ThreadLogger(name, partial(TRACKERS[name], opening), say)
        try:
            ids[name] = logger.open()
        except Exception as error:  # each library has its own
            what = f"{type(error).__name__}: {first_line(error)}"
            if resume_step is None:
                for opened in loggers:
                    opened.close()
                raise ConfigError(f"--run.loggers {name} cannot be opened: {what}") from None
            say(f"{name} cannot be opened, training goes on without it ({what})")
            continue
        loggers.append(logger)
    write_whole(file, (json.dumps(ids, indent=1) + "\n").encode())
    return loggers


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """What a tracker draws of a row: train/… or val/… for numbers, time/… for seconds of spans."""
    kind = row["kind"]
    found = {
        f"{kind}/{name}": float(value) for name, value in row.items()
        if name != "step" and isinstance(value, (int, float)) and not isinstance(value, bool)
    }  # fmt: skip
    return found | {f"time/{name}": float(value) for name, value in row.get("spans", {}).items()}


class ThreadLogger:
    """Opens, feeds and ends one tracker in a thread: training never waits for a network, and
    libraries that keep a current run for each thread do not meet the caller's.
    """

    def __init__(self, name: str, make: Callable[[], Tracker], say: Callable[[str], None]) -> None:
        self._name, self._make, self._say = name, make, say
        self._rows: Queue[dict[str, Any] | None] = Queue(_ROWS_WAITING)
        self._opened: Future[str] = Future()
        self._broken = False
        self._thread = Thread(target=self._run, name=f"logger-{name}", daemon=True)

    def open(self) -> str:
        """Start; returns the id under which the tracker knows the run, or raises its error."""
        self._thread.start()
        return self._opened.result()

    def log(self, row: dict[str, Any]) -> None:
        if self._broken:
            return
        try:
            self._rows.put_nowait(row)
        except Full:
            self._give_up(f"{_ROWS_WAITING:,} rows wait to be sent")

    def close(self) -> None:
        if self._broken:
            return
        try:
            self._rows.put(None, timeout=_SECONDS_TO_END)
            self._thread.join(_SECONDS_TO_END)
        except Full:
            pass
        if self._thread.is_alive():
            self._give_up(f"not all is written after {_SECONDS_TO_END:.0f} s")

    def _run(self) -> None:
        try:
            tracker = self._make()
        except BaseException as error:
            self._opened.set_exception(error)
            return
        self._opened.set_result(tracker.id)
        try:
            while (row := self._rows.get()) is not None:
                if not _is_held(row, tracker.held):
                    tracker.log(scalars(row), row["step"])
            tracker.close()
        except Exception as error:  # each library has its own
            self._give_up(f"{type(error).__name__}: {first_line(error)}")

    def _give_up(self, why: str) -> None:
        if not self._broken:
            self._broken = True
            self._say(f"{self._name} failed, training goes on without it ({why})")


def _is_held(row: dict[str, Any], held: int) -> bool:
    """Whether a tracker has this row from before the run was resumed.

    Of the last step it may lack the validation; that is sent again.
    """
    return bool(row["step"] < held or (row["step"] == held and row["kind"] == "train"))
