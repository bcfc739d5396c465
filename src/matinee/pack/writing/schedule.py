"""Which jobs are given out, in which order, and what follows from their outcomes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from matinee.errors import MatineeError
from matinee.media.source import stamp_of
from matinee.pack.annotations import VideoFile
from matinee.pack.writing.encode_job import Cut, Job, Outcome
from matinee.pack.writing.engine import Advance, Broken, Done, Engine, Event, Lost
from matinee.pack.writing.staging import (
    fingerprint,
    holds_its_bytes,
    join_segments,
    read_part,
    refuse_part,
    staged_name,
)

SEGMENT_SECONDS = 60.0  # the lead-in costs little, and an hour still keeps 60 workers busy
_MOST_LOSSES = 20  # of one job: then something is wrong that trying again does not mend


@dataclass(frozen=True)
class Progress:
    """How far packing is.

    `seconds` of video are packed, of about `all_seconds` (None: not known yet), in `chunks`;
    earlier runs' work counts. `realtime_factor`: seconds of video this run packs in a second.
    `left`: seconds of time, None while unknown.
    """

    videos: int
    all_videos: int
    chunks: int
    seconds: float
    all_seconds: float | None
    realtime_factor: float
    left: float | None


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Packed:
    """What a run of jobs led to: seconds of video it packed, and long videos that stayed whole."""

    seconds: float
    uncut: tuple[tuple[str, str], ...]


def missing_parts(videos: Mapping[int, VideoFile], staging: Path) -> list[int]:
    """Those videos that have no finished part of their source as it is now."""
    missing = []
    for number, video in videos.items():
        part = read_part(staging, staged_name(number))
        if part is None or part["stamp"] != stamp_of(video.path):
            missing.append(number)
    return missing


def pack_parts(
    videos: Mapping[int, VideoFile],
    missing: list[int],
    staging: Path,
    engine: Engine | None,
    on_progress: OnProgress | None,
) -> Packed:
    """Make the missing parts; without any, no engine is needed.

    Raises:
        MatineeError: a worker was ended from outside, or matinee itself failed.
    """
    run = _Run(videos, missing, staging, engine, on_progress)
    run.go()
    return Packed(run.tally.gained, tuple(run.uncut))


class _Run:
    def __init__(
        self,
        videos: Mapping[int, VideoFile],
        missing: list[int],
        staging: Path,
        engine: Engine | None,
        on_progress: OnProgress | None,
    ) -> None:
        self.videos, self.staging, self.engine = videos, staging, engine
        self.jobs = deque(Job(n, videos[n].id, videos[n].path, SEGMENT_SECONDS) for n in missing)
        self.at_work: dict[int, Job] = {}
        self.keys = count()
        self.segments: dict[int, dict[str, bool]] = {}  # of videos that are cut: which are done
        self.losses: dict[str, int] = {}
        self.uncut: list[tuple[str, str]] = []
        self.tally = _Tally(videos, set(missing), staging, on_progress)

    def go(self) -> None:
        self.tally.tell()
        while self.jobs or self.at_work:
            assert self.engine is not None
            while self.jobs and len(self.at_work) < self.engine.slots:
                job, key = self.jobs.popleft(), next(self.keys)
                self.at_work[key] = job
                self.engine.submit(key, job)
            for event in self.engine.events(0.5):
                self._take(event)
            self.tally.tell()

    def _take(self, event: Event) -> None:
        if isinstance(event, Lost) and event.key < 0:
            self._lost(None, event.how)
            return
        job = self.at_work[event.key]
        if isinstance(event, Advance):
            self.tally.advance(job, event.key, event.seconds, event.expected)
            return
        del self.at_work[event.key]
        self.tally.ended(event.key)
        if job.segment is not None and job.number not in self.segments:
            return  # of a video that was given up meanwhile
        match event:
            case Lost(how=how):
                self._lost(job, how)
            case Broken(how=how):
                # A file that brings the decoder down is refused, like any other bad file.
                self._drop_segments(job.number)
                stamp = job.stamp or stamp_of(job.source)
                reason = f"the decoder broke down on it ({how})"
                name = staged_name(job.number)
                refuse_part(self.staging, name, reason, stamp, fingerprint(job.source))
                self.tally.video(job.number, 0.0)
            case Done(outcome=outcome):
                self._done(job, outcome)

    def _done(self, job: Job, outcome: Outcome) -> None:
        if outcome.cut is not None:
            self._cut(job, outcome.cut)
        elif job.segment is None:
            if outcome.uncut:
                self.uncut.append((str(job.source), outcome.uncut))
            self.tally.found(outcome.ready)
            self.tally.video(job.number, outcome.seconds)
        elif outcome.refused:
            # In one go it shows where the damage is, or that only the cut was to blame.
            self._drop_segments(job.number)
            self.uncut.append((str(job.source), outcome.refused))
            whole = Job(job.number, job.video, job.source, segment_seconds=1e18)
            self.jobs.appendleft(whole)
        else:
            self._segment_done(job.number, job.name, outcome.seconds)

    def _cut(self, job: Job, cut: Cut) -> None:
        """Give out the segments that are not there yet, before any other video."""
        segments = [
            replace(job, segment=s, probed=cut.source, stamp=cut.stamp, print_=cut.print_)
            for s in cut.segments
        ]
        self.segments[job.number] = dict.fromkeys((s.name for s in segments), False)
        self.tally.expect(job.number, float(sum(s.frames for s in cut.segments) / cut.source.fps))
        ready: list[tuple[str, float]] = []
        for segment in reversed(segments):
            part = read_part(self.staging, segment.name)
            assert segment.segment is not None
            if (
                part is not None
                and (part["stamp"], part["frames"]) == (cut.stamp, segment.segment.frames)
                and holds_its_bytes(self.staging, part)
            ):
                ready.append((segment.name, part["seconds"]))
            else:
                self.jobs.appendleft(segment)
        for name, seconds in ready:
            self.tally.found(seconds)
            self._segment_done(job.number, name, seconds)

    def _segment_done(self, number: int, name: str, seconds: float) -> None:
        done = self.segments[number]
        done[name] = True
        self.tally.segment(number, seconds)
        if all(done.values()):
            del self.segments[number]
            part = join_segments(self.staging, number, list(done))
            self.tally.video(number, part["seconds"])

    def _drop_segments(self, number: int) -> None:
        self.segments.pop(number, None)
        self.tally.dropped(number)
        self.jobs = deque(j for j in self.jobs if j.number != number or j.segment is None)

    def _lost(self, job: Job | None, how: str) -> None:
        name = "" if job is None else job.name
        self.losses[name] = self.losses.get(name, 0) + 1
        again = self.engine is not None and self.engine.gives_again
        if job is None or not again or self.losses[name] >= _MOST_LOSSES:
            doing = "" if job is None else f" on {job.source}"
            raise MatineeError(
                f"a packing worker was ended{doing}: {how}; run the same "
                "command again (with fewer --workers if memory is short)"
            )
        self.jobs.appendleft(job)


class _Tally:
    """Counts what is done, and tells it."""

    def __init__(
        self,
        videos: Mapping[int, VideoFile],
        missing: set[int],
        staging: Path,
        on_progress: OnProgress | None,
    ) -> None:
        self._on_progress = on_progress
        self._began = time.monotonic()
        self._sizes = {n: max(1, stamp_of(v.path)[0]) for n, v in videos.items()}
        self._all_size = sum(self._sizes.values())
        self._known: dict[int, float] = {}  # seconds of each video, as far as they are known
        self._known_seconds = self._known_size = 0.0  # sums of them, and of their bytes
        self._of_segments: dict[int, float] = {}
        self._running: dict[int, float] = {}
        self._videos = len(videos) - len(missing)
        self._all_videos = len(videos)
        self._chunks = 0
        self._done = self._before = 0.0
        for number in set(videos) - missing:
            part: dict[str, Any] | None = read_part(staging, staged_name(number))
            if part is not None:
                self.expect(number, part["seconds"])
                self._done += part["seconds"]
                self._chunks += len(part.get("chunks", ()))
        self._before = self._done

    def expect(self, number: int, seconds: float) -> None:
        """A video will be so long."""
        if number not in self._known:
            self._known_size += self._sizes[number]
        self._known_seconds += seconds - self._known.get(number, 0.0)
        self._known[number] = seconds

    def advance(self, job: Job, key: int, seconds: float, expected: float) -> None:
        self._running[key] = self._running.get(key, 0.0) + seconds
        self._chunks += seconds > 0
        if job.segment is None:
            self.expect(job.number, expected)

    def found(self, seconds: float) -> None:
        """So much is of an earlier run."""
        self._before += seconds

    def ended(self, key: int) -> None:
        self._running.pop(key, None)

    def segment(self, number: int, seconds: float) -> None:
        self._of_segments[number] = self._of_segments.get(number, 0.0) + seconds

    def dropped(self, number: int) -> None:
        self._of_segments.pop(number, None)

    def video(self, number: int, seconds: float) -> None:
        self._of_segments.pop(number, None)
        self.expect(number, seconds)
        self._done += seconds
        self._videos += 1

    @property
    def gained(self) -> float:
        """Seconds of video that this run packed."""
        partly = sum(self._of_segments.values()) + sum(self._running.values())
        return max(0.0, self._done + partly - self._before)

    def tell(self) -> None:
        if self._on_progress is None:
            return
        seconds = self._before + self.gained
        factor = self.gained / max(1e-6, time.monotonic() - self._began)
        every = None
        if self._known_seconds > 0:
            # Videos that nobody has looked at yet count by their bytes.
            every = max(seconds, self._known_seconds * self._all_size / self._known_size)
        left = (every - seconds) / factor if every is not None and factor > 0 else None
        self._on_progress(
            Progress(self._videos, self._all_videos, self._chunks, seconds, every, factor, left)
        )
