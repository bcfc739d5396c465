"""What lies at the place of a pack: the same pack, complete or not, another one, or none."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matinee.errors import ConfigError, PackError
from matinee.pack.annotations import Annotations
from matinee.pack.format import MANIFEST, STAGING, VERSION, is_pack_file, read_manifest
from matinee.pack.profiles import Profile
from matinee.pack.writing.finish import PackReport, read_failures
from matinee.pack.writing.staging import Locks, fingerprint


def digest_of(
    annotations: Annotations, profile: Profile, prints: Mapping[str, str] | None = None
) -> str:
    """What a pack is made from: names of videos with their fingerprints, samples, settings.

    A complete pack is known by its sources' fingerprints, so that a changed file is noticed and a
    copied data set is not taken for another. An unfinished one is known without them: its parts say
    themselves what they are of, so a file that changed meanwhile is only packed anew.
    """
    videos = [(v.id, prints[v.id] if prints else "") for v in annotations.videos]
    samples = annotations.rows.digest()
    content = json.dumps([VERSION, videos, samples, asdict(profile)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def existing_report(
    out: Path, annotations: Annotations, profile: Profile, loose: str
) -> PackReport | None:
    """The report of a complete pack of the same source; None when there is work to do."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    manifest, job = out / MANIFEST, out / STAGING / "job.json"
    if manifest.exists():
        meta = read_manifest(out)
        with ThreadPoolExecutor(16) as pool:  # files of a data set may lie far away
            paths = [video.path for video in annotations.videos]
            ids = [video.id for video in annotations.videos]
            prints = dict(zip(ids, pool.map(fingerprint, paths), strict=True))
        if meta.get("source_digest") != digest_of(annotations, profile, prints):
            raise PackError(
                f"{out} already holds a pack of other videos or settings; "
                "choose another --out, or replace it with --overwrite"
            )
        shutil.rmtree(out / STAGING, ignore_errors=True)
        return _report_of(out, meta)
    if not job.exists():
        if out.is_dir() and [entry.name for entry in out.iterdir()] == [STAGING]:
            return None  # stopped before it had begun
        raise PackError(f"{out} exists and is no pack; choose another --out")
    if json.loads(job.read_bytes()).get("digest") != loose:
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

    Raises:
        ConfigError: it is something else.
        PackError: another process is packing into it.
    """
    going = out.with_name(f".{out.name}.deleting")
    shutil.rmtree(going, ignore_errors=True)
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    names = {entry.name for entry in out.iterdir()} if out.is_dir() else {out.name}
    foreign = {name for name in names if not (out.is_dir() and is_pack_file(name))}
    if foreign:
        raise ConfigError(f"--overwrite leaves {out} alone: {min(foreign)!r} is no part of a pack")
    if not (out / STAGING).is_dir():
        try:
            read_manifest(out)
        except PackError as error:
            raise ConfigError(
                f"--overwrite leaves {out} alone, for it is no pack: {error}"
            ) from None
    locks = Locks(out / STAGING, None) if (out / STAGING).is_dir() else None
    try:
        if locks is not None:
            locks.check()
        out.rename(going)
    finally:
        if locks is not None:
            locks.close()
    shutil.rmtree(going)
