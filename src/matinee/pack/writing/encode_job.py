"""What a packing worker does: encode a video, or say how it is cut, or encode a segment of it.

Runs in its own process, here or elsewhere; imports no torch. `run_job` does the work and yields
what comes of it; `Receiver` puts that into the staging folder. See Note [Parts] in staging.py.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

from matinee.errors import MediaError
from matinee.media.encode import Chunk, encode_chunks
from matinee.media.normalise import normalised_frames, target_size
from matinee.media.probe import Probe, probe
from matinee.media.segments import Segment, cut_segments, read_packets, segment_frames
from matinee.media.source import Source, check_readable, stamp_of
from matinee.pack.profiles import Profile
from matinee.pack.writing.staging import PartFile, fingerprint, refuse_part, staged_name

PROGRESS = struct.Struct("<qdd")  # job, seconds of video encoded, seconds that it will be in all


@dataclass(frozen=True)
class Cut:
    """A long video as segments, each a job of its own; `stamp` and `print_` tell the file."""

    source: Probe
    segments: tuple[Segment, ...]
    stamp: list[int]
    print_: str


@dataclass(frozen=True)
class Job:
    """A video, or with `segment` (an index) a part of one that was `cut`.

    `segment_seconds` is the least length of a segment; infinite: the video is not cut. The first
    `ready` frames are encoded already, by a job that was stopped.
    """

    number: int
    video: str
    source: Source
    segment_seconds: float
    probed: Probe | None = None
    segment: Segment | None = None
    stamp: list[int] | None = None
    print_: str = ""
    ready: int = 0

    @property
    def name(self) -> str:
        return staged_name(self.number, None if self.segment is None else self.segment.start)


@dataclass(frozen=True)
class Begun:
    """Encoding begins, of a source with this stamp; `seconds` of video are expected."""

    seconds: float
    stamp: list[int]


@dataclass(frozen=True)
class Encoded:
    """A chunk: its name in the tar, the number of its first frame, its seconds."""

    member: str
    start: int
    seconds: float
    chunk: Chunk


@dataclass(frozen=True)
class Finished:
    """The end of a part. `uncut` says why a long video was not cut, if one was not."""

    about: dict[str, Any]
    uncut: str = ""


@dataclass(frozen=True)
class Refused:
    """There will be no part, and why."""

    reason: str
    stamp: list[int]
    print_: str


Item = Begun | Encoded | Finished | Refused | Cut


@dataclass(frozen=True)
class Outcome:
    """What a job led to: a part of so many seconds (`ready` before it began), a refusal, a cut."""

    seconds: float = 0.0
    ready: float = 0.0
    refused: str = ""
    uncut: str = ""
    cut: Cut | None = None


def run_job(job: Job, profile: Profile) -> Iterator[Item]:
    """Do the job; the last item is Finished, Refused or Cut. Holds one chunk at a time."""
    stamp = stamp_of(job.source)
    print_ = job.print_ or fingerprint(job.source)
    reason = _unreadable(job)
    if not reason:
        try:
            yield from _encode(job, profile, stamp, print_)
            return
        except MediaError as error:
            reason = str(error)
    yield Refused(reason, stamp, print_)


def _unreadable(job: Job) -> str:
    try:
        job.video.encode()
        check_readable(job.source)
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    except OSError as error:
        reason = "no such file" if error.errno == errno.ENOENT else f"{error.strerror}"
        return f"cannot be read: {reason}"
    return ""


def _encode(job: Job, profile: Profile, stamp: list[int], print_: str) -> Iterator[Item]:
    if job.stamp is not None and stamp != job.stamp:
        raise MediaError("changed while it was being packed")
    source = job.probed or probe(job.source)
    size = target_size(source, profile.short_side)
    per_chunk = profile.frames_per_chunk(float(source.fps))
    uncut = ""
    if job.segment is not None:
        frames = segment_frames(job.source, source, size, job.segment)
        start, seconds = job.segment.start, float(job.segment.frames / source.fps)
    else:
        if source.duration >= 2 * job.segment_seconds:
            chunks = max(1, round(job.segment_seconds * source.fps / per_chunk))
            try:
                packets = read_packets(job.source, source)
                cut = cut_segments(packets, source, frames_per_chunk=per_chunk, chunks=chunks)
                if not job.ready:
                    yield Cut(source, tuple(cut), stamp, print_)
                    return
            except MediaError as error:
                uncut = str(error)  # if it is damage, decoding will find it
        frames = normalised_frames(job.source, source, size)
        start, seconds = 0, source.duration
    yield Begun(seconds, stamp)
    at = start + job.ready
    for chunk in encode_chunks(
        islice(frames, job.ready, None),  # damage shows in those that are ready, too
        fps=source.fps,
        size=size,
        matrix=source.matrix,
        settings=profile.encoder(),
        frames_per_chunk=per_chunk,
    ):
        member = f"{job.video}/{round(1000 * at / source.fps):09d}"
        count = chunk.table.num_frames
        yield Encoded(member, at, float(count / source.fps), chunk)
        at += count
    if at == start:
        raise MediaError("no frame decodes")
    if stamp_of(job.source) != stamp:
        raise MediaError("changed while it was being packed")
    yield Finished(_about(at - start, source.fps, stamp, print_), uncut)


def _about(frames: int, fps: Fraction, stamp: list[int], print_: str) -> dict[str, Any]:
    return {
        "stamp": stamp,
        "fingerprint": print_,
        "frames": frames,
        "fps": [fps.numerator, fps.denominator],
        "seconds": float(frames / fps),
    }


class Receiver:
    """Puts what a job yields into the staging folder; `job` is then the one to do."""

    def __init__(self, staging: Path, job: Job) -> None:
        self._staging = staging
        self._file = PartFile(staging, job.name)
        self.job = job
        if job.segment is None:
            stamp = stamp_of(job.source)
            ready = self._file.take_up(stamp)
            if ready:
                self.job = replace(job, ready=ready, stamp=stamp)

    def take(self, item: Item) -> Outcome | None:
        """Take the next item; the outcome with the last one."""
        match item:
            case Begun(stamp=stamp):
                if self.job.segment is None:
                    self._file.keep_chunks(stamp)
            case Encoded(member=member, start=start, chunk=chunk):
                self._file.add(member, start, chunk)
            case Finished(about=about, uncut=uncut):
                self._file.finish(about)
                ready = self.job.ready / Fraction(*about["fps"])
                return Outcome(about["seconds"], float(ready), uncut=uncut)
            case Refused(reason=reason, stamp=stamp, print_=print_):
                self._file.discard()
                if self.job.segment is None:  # of a segment, the whole video will tell
                    refuse_part(self._staging, self.job.name, reason, stamp, print_)
                return Outcome(refused=reason)
            case Cut():
                self._file.discard()
                return Outcome(cut=item)
        return None

    def stop(self) -> None:
        """Leave of an unfinished part what can be taken up."""
        self._file.leave()


class EncodeJob:
    """A worker of the local engine: does jobs and writes their parts itself.

    Every chunk is told at once through the pipe `told`, as one PROGRESS record.
    """

    def __init__(self, staging: str, profile: Profile, told: int) -> None:
        self.staging = Path(staging)
        self.profile = profile
        self.told = told

    def __call__(self, payload: tuple[int, Job]) -> Outcome:
        key, job = payload
        receiver = Receiver(self.staging, job)
        expected = 0.0
        try:
            for item in run_job(receiver.job, self.profile):
                outcome = receiver.take(item)
                if outcome is not None:
                    return outcome
                if isinstance(item, Begun):
                    expected = item.seconds
                done = item.seconds if isinstance(item, Encoded) else 0.0
                os.write(self.told, PROGRESS.pack(key, done, expected))
        finally:
            receiver.stop()
        raise AssertionError("a job ended without an outcome")
