"""Ranks watch each other: an error ends all with its first cause, a rank that hangs is named."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch.distributed as dist

from matinee.training.parallel.environment import Store

TOLD = 2
"""Exit status after an error that would come again."""
TRY_AGAIN = os.EX_TEMPFAIL
"""Exit status when a rank hung or was lost: starting again may help."""

_LONG = 6  # times the timeout, for what may well take long
_TO_PRINT_S = 10.0  # in which a rank that raised prints its error and ends by itself
_LOST_S = 5.0  # in which the one that caused a broken connection may say why


@dataclass(frozen=True)
class Beat:
    """What a rank last said of itself."""

    count: int = -1
    """Of its beats; a number that stays is a process that stands still."""
    arrivals: int = 0
    step: int = 0
    phase: str = "start"
    host: str = "?"
    done: bool = False


@dataclass(frozen=True)
class Seen:
    """A beat and since when, on the clock of whoever looks, it has not changed."""

    beat: Beat
    silent_s: float
    """Since its last beat."""
    still_s: float
    """Since it last arrived anywhere."""


def find_hang(ranks: Mapping[int, Seen], timeout_s: float) -> str | None:
    """Who keeps the run waiting for longer than `timeout_s`, in words; None if nobody does.

    A rank may take six times as long to save, and until it has finished its first step: it loads
    weights, starts decoders and compiles.
    """
    running = {rank: seen for rank, seen in ranks.items() if not seen.beat.done}
    if not running:
        return None
    # Ranks further ahead wait for these; among these, some may wait for one that has more time.
    least = min(seen.beat.arrivals for seen in running.values())
    last = {rank: seen for rank, seen in running.items() if seen.beat.arrivals == least}
    hangs = all(seen.still_s >= _allowed(seen, timeout_s) for seen in last.values())
    for rank, seen in sorted(running.items(), key=lambda item: -item[1].silent_s):
        down = hangs and rank in last and seen.silent_s >= timeout_s / 4
        if down or seen.silent_s >= _allowed(seen, timeout_s):
            return (
                f"rank {rank} (host {seen.beat.host}) has not been heard of for "
                f"{seen.silent_s:.0f} s, last in {_place(seen)}: its process or host is down or "
                "cut off; look at its log and the host's"
            )
    if not hangs:
        return None
    if len(last) < len(running):
        rank = max(last, key=lambda rank: last[rank].still_s)
        seen = last[rank]
        return (
            f"rank {rank} (host {seen.beat.host}) has been in {_place(seen)} for "
            f"{seen.still_s:.0f} s while the others wait for it: {_advice(seen.beat.phase)}"
        )
    shortest = min(seen.still_s for seen in running.values())
    places: dict[str, list[int]] = {}
    for rank, seen in running.items():
        places.setdefault(_place(seen), []).append(rank)
    if len(places) == 1:
        return (
            f"all ranks have been in {next(iter(places))} for {shortest:.0f} s, none is behind: "
            "the connection between them may be down, or they wait for different things; "
            "NCCL_DEBUG=INFO tells more, and if this is no hang, raise --parallel.timeout-s"
        )
    where = "; ".join(f"{_names(who)} in {place}" for place, who in places.items())
    return (
        f"no rank has moved for {shortest:.0f} s, and they are not in the same place: {where}; "
        "if this is no hang, raise --parallel.timeout-s"
    )


def is_lost_connection(error: BaseException) -> bool:
    """Whether a collective failed because another rank is gone, as far as its error tells."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and "gloo" in str(error)


def watch_name(run: int) -> str:
    """Under which ranks watch each other in the store, in their first, second, … run (from 0)."""
    return f"watch {run}"


def claim(store: Store, rank: int, status: int, message: str) -> bool:
    """Name the cause of the run's end, unless somebody has; whether this is the first.

    Raises:
        RuntimeError: the store cannot be reached.
    """
    mine = json.dumps([rank, status, message])
    return store.compare_set("cause", "", mine).decode() == mine


class Watch:
    """A thread in each rank that publishes how far it is, and ends it when the run has failed.

    The main thread may hang in a collective, where Python cannot interrupt it: so the thread ends
    the whole process. The loop sets `arrivals`, `step` and `phase` as it goes; plain attributes,
    they cost nothing.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world: int,
        *,
        timeout_s: float,
        hosts_store: bool = False,
        interval_s: float = 1.0,
        exit_process: Callable[[int], Any] = os._exit,
    ) -> None:
        """
        Args:
            store: a connection of its own: one that the main thread waits on would keep this
                thread waiting too.
            hosts_store: the store ends with this process; so it lets the others read first.
            timeout_s: after which a rank that keeps the others waiting is named.
            interval_s: between beats.
        """
        self.arrivals = 0
        """Raise by one wherever all ranks must arrive."""
        self.step = 0
        self.phase = "start"
        """What it does now; to save may take long."""
        self._store, self._rank, self._world = store, rank, world
        self._timeout_s, self._interval_s, self._exit = timeout_s, interval_s, exit_process
        self._read_s = 2 * interval_s if hosts_store else 0.0
        self._host = socket.gethostname()
        self._count = 0
        self._closed = threading.Event()
        now = time.monotonic()
        # Rank 0 looks at all, the others at rank 0: if it is silent, one of them says so.
        self._known = {r: (Beat(), now, now) for r in (range(world) if rank == 0 else [0])}
        self._appeared: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def fail(self, message: str) -> bool:
        """Tell all ranks that this one has failed; whether it is the first, and so should say why.

        All other ranks then end within about a second, and this one after ten if it has not.
        """
        return self._claim(message, TOLD)

    def lost(self, message: str) -> NoReturn:
        """End this rank because its connection to another broke, which is seldom the first cause.

        Whoever knows better has five seconds to say it; else this rank prints `message`.
        """
        end = time.monotonic() + _LOST_S
        with contextlib.suppress(RuntimeError):  # the store may be lost too
            while time.monotonic() < end and self._cause() is None:
                time.sleep(0.1)
        status = TRY_AGAIN
        if self._claim(message, status):
            print(f"matinee train: {message}", file=sys.stderr)
        else:
            with contextlib.suppress(RuntimeError):
                _, status = self._cause() or (0, status)
        self._end(status)
        raise AssertionError("the process has ended")

    def close(self) -> None:
        """The rank is done: nobody waits for it any more."""
        self._closed.set()
        self._thread.join()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:  # else the thread still has to end this process, should it hang
            self.close()

    def _run(self) -> None:
        try:
            while not self._closed.wait(self._interval_s):
                self._beat()
                self._obey()
                self._look()
            self._beat(done=True)
        except RuntimeError:
            self._store_is_gone()

    def _store_is_gone(self) -> None:
        """Its host was the first to end; if that was no failure, this rank may end in peace."""
        host = self._known.get(0)
        if self._closed.is_set() or (host is not None and host[0].done):
            return
        self._end(TRY_AGAIN)

    def _beat(self, done: bool = False) -> None:
        self._count += 1
        text = json.dumps(dataclasses.astuple(self._own(done)))
        self._store.set(f"beat/{self._rank}", text)

    def _obey(self) -> None:
        cause = self._cause()
        if cause is None:
            return
        rank, status = cause
        if rank == self._rank and self._closed.wait(_TO_PRINT_S):
            return
        self._end(status)

    def _look(self) -> None:
        others = [rank for rank in self._known if rank != self._rank]
        for rank in others:  # reading what is not there yet would wait for it
            if rank not in self._appeared and self._store.check([f"beat/{rank}"]):
                self._appeared.add(rank)
        heard_of = [rank for rank in others if rank in self._appeared]
        texts = self._store.multi_get([f"beat/{rank}" for rank in heard_of])
        beats = {rank: Beat(*json.loads(text)) for rank, text in zip(heard_of, texts, strict=True)}
        if self._rank == 0:
            beats[0] = self._own()
        now = time.monotonic()
        for rank, beat in beats.items():
            before, heard, moved = self._known[rank]
            heard = now if beat.count != before.count else heard
            moved = now if beat.arrivals != before.arrivals else moved
            self._known[rank] = (beat, heard, moved)
        seen = {
            # How far rank 0 is says nothing to those who see nobody else; its silence does.
            rank: Seen(beat, now - heard, now - moved if self._rank == 0 else 0.0)
            for rank, (beat, heard, moved) in self._known.items()
        }
        hang = find_hang(seen, self._timeout_s)
        if hang is not None:
            if self._claim(hang, TRY_AGAIN):
                print(f"matinee train: {hang}", file=sys.stderr)
            self._end(TRY_AGAIN)

    def _own(self, done: bool = False) -> Beat:
        return Beat(self._count, self.arrivals, self.step, self.phase, self._host, done)

    def _claim(self, message: str, status: int) -> bool:
        """Set the cause unless another rank has; whether it was this one."""
        try:
            first = claim(self._store, self._rank, status, message)
        except RuntimeError:
            return True  # nobody can be told any more
        time.sleep(self._read_s)
        return first

    def _cause(self) -> tuple[int, int] | None:
        """Which rank has failed, and the status to end with."""
        if not self._store.check(["cause"]):
            return None
        rank, status, _ = json.loads(self._store.get("cause"))
        return rank, status

    def _end(self, status: int) -> None:
        def flush() -> None:
            sys.stdout.flush()
            if sys.stderr.isatty():
                sys.stderr.write("\x1b[?25h")  # a live view hides the cursor
            sys.stderr.flush()

        # The main thread may hold a stream and never give it back.
        flushing = threading.Thread(target=flush, daemon=True)
        flushing.start()
        flushing.join(1.0)
        self._exit(status)


def _allowed(seen: Seen, timeout_s: float) -> float:
    long = seen.beat.phase == "save" or seen.beat.arrivals < 2
    return timeout_s * (_LONG if long else 1)


def _place(seen: Seen) -> str:
    return f"{seen.beat.phase} of step {seen.beat.step}"


def _names(ranks: list[int]) -> str:
    """As in: rank 3; ranks 0, 1, 2; ranks 0, 1, 2, 3 and 60 more."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"ranks {', '.join(map(str, ranks[:4]))}{more}"


def _advice(phase: str) -> str:
    if phase == "data_wait":
        return "look at that host's disk and decoders, or raise --parallel.timeout-s"
    if phase == "save":
        return "look at the disk of --run.out, or raise --parallel.timeout-s"
    return "look at that host, or raise --parallel.timeout-s"
