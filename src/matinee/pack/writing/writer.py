"""Write a pack: encode videos in parallel into staging, then assemble shards and tables.

# Note [Nothing half-written]
Workers write parts into `.staging`: see Note [Parts] in staging.py. A part counts only when it is
whole and of the source as it is now, so a run that was killed continues where it stopped, and
shares of the work can be done by other runs beside or before. Shards are assembled in the order of
the videos from whole parts, and `pack.json` comes last: a folder without it is not a pack. Encoding
is deterministic, so however the work was shared out and interrupted, the pack is the same, byte for
byte.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from matinee.errors import ConfigError, MatineeError, PackError
from matinee.media.source import stamp_of
from matinee.pack.annotations import Annotations, VideoFile
from matinee.pack.format import STAGING
from matinee.pack.profiles import Profile
from matinee.pack.writing.engine import Engine, LocalEngine
from matinee.pack.writing.existing import digest_of, existing_report, remove_pack
from matinee.pack.writing.finish import Failure, PackReport, finish_pack
from matinee.pack.writing.schedule import OnProgress, Packed, missing_parts, pack_parts
from matinee.pack.writing.shards import assemble_shards
from matinee.pack.writing.staging import (
    Locks,
    delete_leftovers,
    holds_its_bytes,
    note_job,
    read_part,
    staged_name,
)

_BYTES_A_WORKER = 4 << 20  # fewer bytes of video do not keep another worker busy


@dataclass(frozen=True)
class Workforce:
    """Who encodes: `workers` processes here (None: as many as cores), or tasks on a Ray cluster."""

    engine: Literal["local", "ray"] = "local"
    workers: int | None = None
    ray_address: str | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"--workers {self.workers}: at least 1")
        if self.ray_address is not None and self.engine != "ray":
            raise ConfigError(f"--ray-address {self.ray_address} needs --engine ray")

    def start(self, staging: Path, profile: Profile, videos: int, size: int) -> Engine:
        """The engine, with no more workers than so many videos of `size` bytes can keep busy."""
        if self.engine == "ray":
            from matinee.pack.writing.engine_ray import RayEngine

            return RayEngine(staging, profile, self.workers, self.ray_address)
        most = videos + size // _BYTES_A_WORKER
        workers = self.workers or len(os.sched_getaffinity(0))
        return LocalEngine(staging, profile, min(workers, most))


@dataclass(frozen=True)
class ShareReport:
    """What one share of the work did: so many `videos` are its own, `done` before it began."""

    out: Path
    share: tuple[int, int]
    videos: int
    done: int
    realtime_factor: float
    uncut: tuple[tuple[str, str], ...] = ()


def write_pack(
    out: str | Path,
    annotations: Annotations,
    profile: Profile,
    *,
    workers: int | None = None,
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    overwrite: bool = False,
    merge: bool = False,
    on_progress: OnProgress | None = None,
) -> PackReport:
    """Pack videos and samples into the folder `out`; continue there if a run was cut off.

    Args:
        workers: processes that encode, a video or a segment of one each at a time; the number of
            usable cores when None.
        engine, ray_address: where they run; a cluster's address as `ray.init` takes it.
        overwrite: replace a pack (complete or not) that was made from something else.
        merge: encode nothing; all shares must be done.
        on_progress: called often.

    Raises:
        PackError: `out` holds something else, nothing sound to pack, a share is missing, or the
            disk is full.
    """
    out = Path(out).resolve()
    force = Workforce(engine, workers, ray_address)
    if overwrite:
        remove_pack(out)
    begun = time.monotonic()
    with _staging(out, annotations, profile, None) as staging:
        if isinstance(staging, PackReport):
            return staging
        videos = dict(enumerate(annotations.videos))
        missing = _missing(videos, staging, out / "shards")
        if merge and missing:
            raise PackError(_unmerged(videos, missing, out))
        packed = _pack(videos, missing, staging, profile, force, on_progress)
        report = _assemble(out, annotations, staging, profile, len(videos) - len(missing))
        shutil.rmtree(out / STAGING)
    took = max(1e-6, time.monotonic() - begun)
    return replace(report, realtime_factor=packed.seconds / took, uncut=packed.uncut)


def write_share(
    out: str | Path,
    annotations: Annotations,
    profile: Profile,
    share: tuple[int, int],
    *,
    workers: int | None = None,
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    on_progress: OnProgress | None = None,
) -> ShareReport | PackReport:
    """Encode every n-th video only, beside other shares; `write_pack` then makes the pack of them.

    Args:
        share: (i, n), i of 1 … n; all shares share `out`.

    Returns:
        The report of the pack instead, if it is complete already.

    Raises:
        PackError: as `write_pack`; or this share is being done already.
    """
    out = Path(out).resolve()
    i, n = share
    if not 1 <= i <= n:
        raise ConfigError(f"--shard {i}/{n}: expected i/n with i from 1 to n")
    force = Workforce(engine, workers, ray_address)
    begun = time.monotonic()
    with _staging(out, annotations, profile, share) as staging:
        if isinstance(staging, PackReport):
            return staging
        videos = dict(list(enumerate(annotations.videos))[i - 1 :: n])
        missing = missing_parts(videos, staging)
        if (out / "shards").exists() and missing:
            raise PackError(
                f"{out} is being assembled, but {videos[missing[0]].path} has changed since: run "
                "the command without --shard"
            )
        packed = _pack(videos, missing, staging, profile, force, on_progress)
    took = max(1e-6, time.monotonic() - begun)
    factor = packed.seconds / took
    return ShareReport(out, share, len(videos), len(videos) - len(missing), factor, packed.uncut)


@contextmanager
def _staging(
    out: Path, annotations: Annotations, profile: Profile, share: tuple[int, int] | None
) -> Iterator[Path | PackReport]:
    """The folder of parts, locked; or the report, where the pack is complete."""
    loose = digest_of(annotations, profile)
    done = existing_report(out, annotations, profile, loose)
    if done is not None:
        yield done
        return
    staging = out / STAGING
    locks: Locks | None = None
    try:
        staging.mkdir(parents=True, exist_ok=True)
        locks = Locks(staging, share)
        done = existing_report(
            out, annotations, profile, loose
        )  # another may have ended it meanwhile
        if done is not None:
            yield done
            return
        mine = range(len(annotations.videos))[share[0] - 1 :: share[1]] if share else None
        locks.check()
        parts = note_job(staging, loose, share[1] if share else None)
        delete_leftovers(parts, mine)
        yield parts
    except OSError as error:
        raise _storage_error(out, error) from error
    finally:
        if locks is not None:
            locks.close()


def _missing(videos: dict[int, VideoFile], staging: Path, shards: Path) -> list[int]:
    """Videos that have no whole part; shards that were made of other sources are deleted."""
    missing = missing_parts(videos, staging)
    if shards.exists() and missing:
        # A source changed after shards were made of it: they and their parts are no longer true.
        shutil.rmtree(shards)
        for number in set(videos) - set(missing):
            part = read_part(staging, staged_name(number))
            if part is None or not holds_its_bytes(staging, part):
                missing.append(number)
    return sorted(missing)


def _unmerged(videos: dict[int, VideoFile], missing: list[int], out: Path) -> str:
    some = ", ".join(str(videos[number].path) for number in missing[:3])
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return (
        f"{len(missing)} of {len(videos)} videos are not packed in {out} yet: {some}{more}; run "
        "their --shard again, or the same command without --merge to pack them here"
    )


def _pack(
    videos: dict[int, VideoFile],
    missing: list[int],
    staging: Path,
    profile: Profile,
    force: Workforce,
    on_progress: OnProgress | None,
) -> Packed:
    if not missing:
        return pack_parts(videos, [], staging, None, on_progress)
    size = sum(stamp_of(videos[number].path)[0] for number in missing)
    engine = force.start(staging, profile, len(missing), size)
    try:
        return pack_parts(videos, missing, staging, engine, on_progress)
    finally:
        engine.close()


def _assemble(
    out: Path, annotations: Annotations, staging: Path, profile: Profile, resumed: int
) -> PackReport:
    sizes: dict[int, int] = {}
    prints: dict[str, str] = {}
    durations: dict[str, float] = {}
    refused: list[Failure] = []
    for number, video in enumerate(annotations.videos):
        part: dict[str, Any] | None = read_part(staging, staged_name(number))
        if part is None:
            raise PackError(f"{staging}: the part of {video.path} has gone")
        prints[video.id] = part["fingerprint"]
        if "refused" in part:
            refused.append(Failure(str(video.path), "refused", part["refused"]))
        else:
            sizes[number] = part["bytes"]
            durations[video.id] = part["frames"] * part["fps"][1] / part["fps"][0]
    files, chunks, codecs = assemble_shards(out, staging, annotations.videos, sizes)
    return finish_pack(
        out,
        annotations,
        durations=durations,
        refused=refused,
        files=files,
        chunks=chunks,
        codecs=codecs,
        size=sum(row["size"] for row in files),
        profile=profile,
        source_digest=digest_of(annotations, profile, prints),
        resumed=resumed,
    )


def _storage_error(out: Path, error: OSError) -> MatineeError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(out if out.exists() else out.parent).free
        return PackError(
            f"the disk of {out} is full ({free / 1e6:.0f} MB free): make room and run the same "
            "command again, it continues where it stopped"
        )
    return PackError(f"cannot write {error.filename or out}: {error.strerror or error}")
