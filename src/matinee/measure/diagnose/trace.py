"""A timeline for ui.perfetto.dev: what every rank and every decoder did, when.

# Note [Traces]
The file is JSON of the Trace Event Format, which Perfetto and chrome://tracing open. Ranks and
decoding processes are its processes, decoders its threads. "loop" holds the spans of steps (of a
GPU's time where there is one), "steps" whatever encloses them, decoders their clips, and within
each clip reading, decoding and scaling. Times of all processes of a machine are of one clock
(CLOCK_MONOTONIC); ranks on other machines have clocks of their own, and are shifted against each
other. Of a long loop the last `KEPT` stretches are kept.

All events are complete ones ("X"), with times in whole nanoseconds, so that what lies within
another never ends after it.

Source: Trace Event Format, as Chromium documents it (catapult, docs/trace-event-format.md).
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from matinee.data.epochs import EpochLoader
from matinee.data.flights import TracedJob
from matinee.data.loader import ClipLoader
from matinee.files import naming, write_whole
from matinee.spans import Spans

_STEPS, _LOOP, _FIRST_DECODER = 0, 1, 2
_PROCESSES_A_RANK = 1000
KEPT = 200_000
"""Stretches of a rank: about 100 MB, and more than Perfetto shows quickly."""


@dataclass(frozen=True)
class Stretch:
    """What was done on one track, in seconds of CLOCK_MONOTONIC."""

    name: str
    process: int
    thread: int
    begin: float
    end: float
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class Trace:
    """Collects what one rank and its decoders do; can be sent to another rank.

    `processes` and `threads` are the names of tracks.
    """

    rank: int = 0
    stretches: deque[Stretch] = field(default_factory=lambda: deque(maxlen=KEPT))
    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[tuple[int, int], str] = field(default_factory=dict)
    decoders: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """Process and thread as the system numbers them → process and thread here."""

    @property
    def process(self) -> int:
        return self.rank * _PROCESSES_A_RANK

    @contextmanager
    def follow(self, spans: Spans, loader: EpochLoader | None = None) -> Iterator[None]:
        """Inside, take down all spans and decoding jobs.

        Spans of a GPU arrive when they are taken: take them before leaving.
        """
        self._name(self.process, f"rank {self.rank}", _LOOP, "loop")
        clips = loader if isinstance(loader, ClipLoader) else None
        spans.record = lambda name, begin, end: self._add(name, _LOOP, begin, end)
        if clips is not None:
            clips.trace_jobs(self._job)
        try:
            yield
        finally:
            spans.record = None
            if clips is not None:
                clips.trace_jobs(None)

    @contextmanager
    def stretch(self, name: str, **args: Any) -> Iterator[None]:
        """Something that encloses spans, such as a step."""
        begin = monotonic()
        try:
            yield
        finally:
            self.step(name, begin, monotonic(), **args)

    def step(self, name: str, begin: float, end: float, **args: Any) -> None:
        """As `stretch`, with its times."""
        self._name(self.process, f"rank {self.rank}", _STEPS, "steps")
        self.stretches.append(Stretch(name, self.process, _STEPS, begin, end, args))

    def _add(self, name: str, thread: int, begin: float, end: float) -> None:
        self.stretches.append(Stretch(name, self.process, thread, begin, end))

    def _name(self, process: int, name: str, thread: int, thread_name: str) -> None:
        self.processes.setdefault(process, name)
        self.threads.setdefault((process, thread), thread_name)

    def _job(self, job: TracedJob) -> None:
        process, thread = self._decoder(job.decoded.decoder)
        done, cost = job.decoded, job.decoded.cost
        args: dict[str, Any] = {
            "epoch": job.epoch, "batch": job.batch, "rows": list(job.rows),
            "queued_ms": 1000 * cost.queued_s, "handoff_ms": 1000 * cost.handoff_s,
            "bytes": cost.bytes, "packets": cost.packets, "frames_decoded": cost.frames_decoded,
            "frames_used": cost.frames_used,
        }  # fmt: skip
        if done.failure is not None:
            args["failure"] = done.failure
        name = ", ".join(job.samples)
        self.stretches.append(Stretch(name, process, thread, done.begin, done.end, args))
        self.stretches += [
            Stretch(part.kind, process, thread, part.begin, part.end) for part in done.stretches
        ]

    def _decoder(self, who: tuple[int, int]) -> tuple[int, int]:
        """The track of a decoder, a new one the first time."""
        if who not in self.decoders:
            others = [place for (pid, _), place in self.decoders.items() if pid == who[0]]
            thread = _FIRST_DECODER + len(others)
            if who[0] == os.getpid():
                process = self.process
            elif others:
                process = others[0][0]
            else:
                process = self.process + 1 + len({place[0] for place in self.decoders.values()})
            number = f"decoder {thread - _FIRST_DECODER}"
            self._name(process, f"rank {self.rank}, decoding process {who[0]}", thread, number)
            self.decoders[who] = (process, thread)
        return self.decoders[who]


def trace_events(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """Events of all ranks, names first, then by time; a stretch before what lies within it."""
    events: list[dict[str, Any]] = []
    for trace in traces:
        for process, name in sorted(trace.processes.items()):
            events.append(_meta("process_name", process, 0, {"name": name}))
            events.append(_meta("process_sort_index", process, 0, {"sort_index": process}))
        for (process, thread), name in sorted(trace.threads.items()):
            events.append(_meta("thread_name", process, thread, {"name": name}))
            events.append(_meta("thread_sort_index", process, thread, {"sort_index": thread}))
    stretches = [stretch for trace in traces for stretch in trace.stretches]
    first = min((stretch.begin for stretch in stretches), default=0.0)

    def nanoseconds(at: float) -> int:
        return round(1e9 * (at - first))

    timed = [(nanoseconds(s.begin), nanoseconds(s.end), s) for s in stretches]
    for begin, end, stretch in sorted(timed, key=lambda t: (t[0], -t[1])):
        event = {
            "ph": "X", "name": stretch.name, "pid": stretch.process, "tid": stretch.thread,
            "ts": begin / 1000, "dur": (end - begin) / 1000,
        }  # fmt: skip
        events.append(event | ({"args": stretch.args} if stretch.args else {}))
    return events


def _meta(what: str, process: int, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


def write_trace(path: str | Path, traces: Sequence[Trace]) -> None:
    """Write a file that ui.perfetto.dev opens, of all ranks' traces.

    Raises:
        OSError: it cannot be written.
    """
    content = {"traceEvents": trace_events(traces), "displayTimeUnit": "ms"}
    data = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    with naming(str(path)):
        write_whole(Path(path), data)
