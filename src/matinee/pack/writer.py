"""Write a pack: encode videos in parallel into staging, then assemble shards and tables.

# Note [Nothing half-written]
A worker writes one video's tar members to `.staging/<n>.tar` and then, durably, `<n>.json`. A part
counts only with its JSON, which names the source's size and time, so a run that was killed
continues where it stopped. Shards are assembled in the order of the videos from whole parts, and
`pack.json` comes last: a folder without it is not a pack. Encoding is deterministic, so the result
of a continued run equals that of an undisturbed one, byte for byte.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from matinee.errors import ConfigError, MatineeError, PackError
from matinee.files import write_whole
from matinee.media.source import stamp_of
from matinee.pack.annotations import Annotations, VideoFile
from matinee.pack.encode_job import write_part
from matinee.pack.finish import Failure, PackReport, finish_pack, read_failures
from matinee.pack.format import MANIFEST, PACK_FILES, STAGING, VERSION, read_manifest
from matinee.pack.profiles import Profile
from matinee.pack.shards import assemble_shards
from matinee.workers import WorkerPool

# Signals by which a process ends through a fault of its own, not by someone's wish.
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


def write_pack(
    out: str | Path,
    annotations: Annotations,
    profile: Profile,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    on_progress: Callable[[int, int, float], None] | None = None,
) -> PackReport:
    """Pack videos and samples into the folder `out`; continue there if a run was cut off.

    Args:
        workers: processes, one video each at a time; the number of usable cores when None.
        overwrite: replace a pack (complete or not) that was made from something else.
        on_progress: called with (videos done, videos in all, seconds of video packed).

    Raises:
        PackError: `out` holds something else, nothing sound to pack, or the disk is full.
    """
    out = Path(out).resolve()
    digest = _digest(annotations, profile)
    if overwrite:
        remove_pack(out)
    done = _existing(out, digest)
    if done is not None:
        return done
    staging = out / STAGING
    try:
        staging.mkdir(parents=True, exist_ok=True)
        lock = _lock(staging)
        done = _existing(out, digest)  # another process may have ended it meanwhile
        if done is not None:
            return done
        for leftover in staging.glob("*.tmp"):
            leftover.unlink(missing_ok=True)  # a worker of a killed run may end just now
        write_whole(staging / "job.json", json.dumps({"digest": digest}).encode())
        resumed = _encode_all(annotations.videos, staging, profile, workers, on_progress)
        parts = [_read_part(staging, number) for number in range(len(annotations.videos))]
        report = _assemble(out, annotations, parts, profile, digest, resumed)
    except OSError as error:
        raise _storage_error(out, error) from error
    shutil.rmtree(staging)
    lock.close()
    return report


def _lock(staging: Path) -> BinaryIO:
    """Hold the staging folder; the system lets go of it when this process ends, however it does."""
    file = (staging / "lock").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PackError(f"another process is packing into {staging.parent}") from None
    return file


def _encode_all(
    videos: tuple[VideoFile, ...],
    staging: Path,
    profile: Profile,
    workers: int | None,
    on_progress: Callable[[int, int, float], None] | None,
) -> int:
    """Encode every video that has no whole part yet; returns how many had one."""
    whole = {n: _whole_part(staging, n, video) for n, video in enumerate(videos)}
    shards = staging.parent / "shards"
    if shards.exists() and None in whole.values():
        # A source changed after shards were made of it: they and their parts are no longer true.
        shutil.rmtree(shards)
        tar_exists = {n: (staging / f"{n:06d}.tar").exists() for n in whole}
        whole = {
            n: p if p and (tar_exists[n] or "refused" in p) else None for n, p in whole.items()
        }
    open_jobs = [number for number, part in whole.items() if part is None]
    finished = resumed = len(videos) - len(open_jobs)
    seconds = sum(part["seconds"] for part in whole.values() if part)
    if on_progress:
        on_progress(finished, len(videos), seconds)
    if not open_jobs:
        return resumed
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers {workers}: at least 1")
    count = min(workers or len(os.sched_getaffinity(0)), len(open_jobs))
    with WorkerPool(count, "matinee.pack.encode_job:EncodeJob", (str(staging), profile)) as pool:
        for number in open_jobs:
            pool.submit(number, (number, videos[number].id, str(videos[number].path)))
        left = set(open_jobs)
        while left:
            for result in pool.results(restart=True):
                if result.died:
                    if result.job < 0 or result.signal not in _CRASHES:
                        doing = f" on {videos[result.job].path}" if result.job >= 0 else ""
                        raise MatineeError(
                            f"a packing worker was ended{doing}: {result.died}; run the same "
                            "command again (with fewer --workers if memory is short)"
                        )
                    # A file that brings the decoder down is refused, like any other bad file.
                    reason = f"the decoder broke down on it: {result.died}"
                    part = {"refused": reason, "seconds": 0.0}
                    write_part(staging, result.job, part, stamp_of(videos[result.job].path))
                elif isinstance(result.error, OSError):
                    raise result.error
                elif result.error is not None:
                    raise MatineeError(
                        f"packing {videos[result.job].path} failed in matinee itself: "
                        f"{result.error!r}\n{result.trace}"
                    )
                part = _read_part(staging, result.job)
                left.discard(result.job)
                finished, seconds = finished + 1, seconds + part["seconds"]
                if on_progress:
                    on_progress(finished, len(videos), seconds)
    return resumed


def _read_part(staging: Path, number: int) -> dict[str, Any]:
    part: dict[str, Any] = json.loads((staging / f"{number:06d}.json").read_bytes())
    return part


def _whole_part(staging: Path, number: int, video: VideoFile) -> dict[str, Any] | None:
    try:
        part = _read_part(staging, number)
    except (FileNotFoundError, ValueError):
        return None
    return part if part["stamp"] == stamp_of(video.path) else None


def _assemble(
    out: Path,
    annotations: Annotations,
    parts: list[dict[str, Any]],
    profile: Profile,
    digest: str,
    resumed: int,
) -> PackReport:
    files, chunks, codecs = assemble_shards(out, annotations.videos, parts)
    pairs = list(zip(annotations.videos, parts, strict=True))
    return finish_pack(
        out,
        annotations,
        durations={
            video.id: part["frames"] * part["fps"][1] / part["fps"][0]
            for video, part in pairs
            if "refused" not in part
        },
        refused=[
            Failure(str(video.path), "refused", part["refused"])
            for video, part in pairs
            if "refused" in part
        ],
        files=files,
        chunks=chunks,
        codecs=codecs,
        size=sum(row["size"] for row in files),
        profile=profile,
        source_digest=digest,
        resumed=resumed,
    )


def _digest(annotations: Annotations, profile: Profile) -> str:
    """What the pack is made from: names and sizes of the videos, samples, settings."""
    videos = [(video.id, stamp_of(video.path)[0]) for video in annotations.videos]
    samples = [asdict(sample) for sample in annotations.samples]
    content = json.dumps([VERSION, videos, samples, asdict(profile)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _existing(out: Path, digest: str) -> PackReport | None:
    """The report of a complete pack of the same source; None when there is work to do."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    manifest, job = out / MANIFEST, out / STAGING / "job.json"
    if manifest.exists():
        meta = read_manifest(out)
        if meta.get("source_digest") != digest:
            raise PackError(
                f"{out} already holds a pack of other videos or settings; "
                "choose another --out, or replace it with --overwrite"
            )
        shutil.rmtree(out / STAGING, ignore_errors=True)
        return _report_of(out, meta)
    if out.is_dir() and [entry.name for entry in out.iterdir()] == [STAGING] and not job.exists():
        return None  # stopped before it had begun
    if not job.exists():
        raise PackError(f"{out} exists and is no pack; choose another --out")
    if json.loads(job.read_bytes()).get("digest") != digest:
        raise PackError(
            f"{out} holds an unfinished pack of other videos or settings; "
            "choose another --out, or start anew with --overwrite"
        )
    return None


def _report_of(out: Path, meta: dict[str, Any]) -> PackReport:
    try:
        failures = read_failures(out)
        report = meta["report"]
        return PackReport(
            out, report["videos"], report["samples"], report["chunks"], report["bytes"],
            report["seconds_of_video"], tuple(f for f in failures if f.kind == "refused"),
            tuple(f for f in failures if f.kind == "ignored"), report["videos"], True,
        )  # fmt: skip
    except (KeyError, TypeError, OSError) as error:
        raise PackError(f"{out} is a damaged pack ({error!r}): --overwrite makes it anew") from None


def remove_pack(out: Path) -> None:
    """Delete a pack, complete or not, and nothing that is not one.

    It is renamed first, so that there is never half a pack under its name.
    """
    going = out.with_name(f".{out.name}.deleting")
    shutil.rmtree(going, ignore_errors=True)
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    foreign = {entry.name for entry in out.iterdir()} - PACK_FILES if out.is_dir() else {out.name}
    if foreign:
        raise ConfigError(f"--overwrite leaves {out} alone: {min(foreign)!r} is no part of a pack")
    if not (out / STAGING).is_dir():
        try:
            read_manifest(out)
        except PackError as error:
            raise ConfigError(
                f"--overwrite leaves {out} alone, for it is no pack: {error}"
            ) from None
    out.rename(going)
    shutil.rmtree(going)


def _storage_error(out: Path, error: OSError) -> MatineeError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(out if out.exists() else out.parent).free
        return PackError(
            f"the disk of {out} is full ({free / 1e6:.0f} MB free): make room and run the same "
            "command again, it continues where it stopped"
        )
    return PackError(f"cannot write {error.filename or out}: {error.strerror or error}")
