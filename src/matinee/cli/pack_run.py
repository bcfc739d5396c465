"""`matinee pack` at work: who encodes, how far it is, and what a share of the work did."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from matinee.cli.common import counting, err, out, write_json
from matinee.errors import ConfigError
from matinee.pack.annotations import Annotations
from matinee.pack.profiles import Profile
from matinee.pack.writing.finish import PackReport
from matinee.pack.writing.schedule import Progress
from matinee.pack.writing.writer import ShareReport, write_pack, write_share


class Work(Protocol):
    """As much of the command's flags as is needed here."""

    @property
    def workers(self) -> int | None: ...
    @property
    def engine(self) -> Literal["local", "ray"]: ...
    @property
    def ray_address(self) -> str | None: ...
    @property
    def shard(self) -> str | None: ...
    @property
    def merge(self) -> bool: ...
    @property
    def overwrite(self) -> bool: ...
    @property
    def json(self) -> str | None: ...


def run(work: Work, place: Path, annotations: Annotations, profile: Profile) -> PackReport | None:
    """Pack, or do a share of it, which is then told; the pack's report if there is a pack now."""
    share = None if work.shard is None else share_of(work.shard)
    if share is not None and (work.merge or work.overwrite):
        other = "--merge" if work.merge else "--overwrite"
        raise ConfigError(f"--shard {work.shard} does not go with {other}, which is for them all")
    try:
        with counting("packing", "s of video") as step:
            told = telling(step)
            if share is None:
                report: PackReport | ShareReport = write_pack(
                    place, annotations, profile, workers=work.workers, engine=work.engine,
                    ray_address=work.ray_address, overwrite=work.overwrite, merge=work.merge,
                    on_progress=told,
                )  # fmt: skip
            else:
                report = write_share(
                    place, annotations, profile, share, workers=work.workers, engine=work.engine,
                    ray_address=work.ray_address, on_progress=told,
                )  # fmt: skip
    except KeyboardInterrupt:
        err.print("what is encoded is kept: the same command continues")
        raise
    if report.uncut:
        path, why = report.uncut[0]
        more = f" (and {len(report.uncut) - 1} more)" if len(report.uncut) > 1 else ""
        err.print(f"encoded by one worker from beginning to end: {path}, it {why}{more}")
    if isinstance(report, PackReport):
        if report.was_complete:
            err.print(f"{place} was complete already; --overwrite makes it anew")
        elif report.resumed:
            err.print(f"continued: {report.resumed} videos were packed before")
        return report
    _tell_share(report, work.json)
    return None


def share_of(text: str) -> tuple[int, int]:
    """(i, n) from "i/n".

    Raises:
        ConfigError: anything else, or i outside 1 … n.
    """
    found = re.fullmatch(r"([0-9]{1,7})/([0-9]{1,7})", text)
    i, n = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= i <= n:
        raise ConfigError(f"--shard {text}: expected i/n with i from 1 to n, such as 3/16")
    return i, n


def telling(step: Callable[..., None]) -> Callable[[Progress], None]:
    """A progress bar in seconds of video, so that one long video moves it too."""

    def tell(progress: Progress) -> None:
        note = f"s of video; {progress.videos} of {progress.all_videos} videos"
        if progress.chunks:
            note += f", {progress.chunks} chunks, {progress.realtime_factor:.1f}x real time"
        if progress.left is not None:
            note += f", {duration(progress.left)} left"
        whole = progress.all_seconds
        step(int(progress.seconds), 1 if whole is None else max(1, round(whole)), note)

    return tell


def duration(seconds: float) -> str:
    """12 s, 3 min, 5 h 20 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def _tell_share(report: ShareReport, json: str | None) -> None:
    i, n = report.share
    say = err if json == "-" else out
    say.print(
        f"shard {i}/{n} of {report.out}: {report.videos} videos are ready, "
        f"{report.done} of them before"
    )
    say.print("when all shards are: the same command with --merge in place of --shard")
    write_json(
        json,
        {
            "out": str(report.out),
            "shard": f"{i}/{n}",
            "videos": report.videos,
            "resumed": report.done,
            "realtime_factor": report.realtime_factor,
        },
    )
