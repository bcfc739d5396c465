"""The end of making a pack, encoded or indexed: samples, failures, tables, and last pack.json."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from matinee.errors import PackError
from matinee.files import write_whole
from matinee.pack.annotations import Annotations, Sample
from matinee.pack.format import MANIFEST, VERSION
from matinee.pack.profiles import Profile
from matinee.pack.tables import write_tables


@dataclass(frozen=True)
class Failure:
    """A file or sample that is not in the pack. `kind` is "refused" or "ignored"."""

    path: str
    kind: str
    reason: str


@dataclass(frozen=True)
class PackReport:
    """What packing did. `seconds_of_video` is the footage that was packed."""

    out: Path
    videos: int
    samples: int
    chunks: int
    bytes: int
    seconds_of_video: float
    refused: tuple[Failure, ...]
    ignored: tuple[Failure, ...]
    resumed: int
    was_complete: bool

    def counts(self) -> dict[str, float]:
        """The report in numbers, for JSON."""
        return {
            "videos": self.videos,
            "samples": self.samples,
            "chunks": self.chunks,
            "bytes": self.bytes,
            "seconds_of_video": self.seconds_of_video,
            "refused": len(self.refused),
            "ignored": len(self.ignored),
        }


def finish_pack(
    out: Path,
    annotations: Annotations,
    *,
    durations: dict[str, float],
    refused: list[Failure],
    files: list[dict[str, Any]],
    chunks: list[dict[str, Any]],
    codecs: list[dict[str, Any]],
    size: int,
    profile: Profile | None,
    source_digest: str | None,
    resumed: int = 0,
) -> PackReport:
    """Write everything but the video, and pack.json last.

    Args:
        durations: seconds of each video that is in the pack, by id.
        refused: videos that are not; samples that do not fit their video join them.
        files, chunks, codecs: rows of the tables.
        size: bytes of video.
        profile: how it was encoded; None for indexed originals.
        resumed: videos that an earlier, interrupted run had packed.

    Raises:
        PackError: not one sample is left.
    """
    samples, beyond = _fit_samples(annotations.samples, durations)
    refused = refused + beyond
    ignored = [Failure(path, "ignored", reason) for path, reason in annotations.bystanders]
    _write_failures(out, refused + ignored)
    if not samples:
        why = f"; the first refusal: {refused[0].path} {refused[0].reason}" if refused else ""
        raise PackError(f"none of {len(annotations.videos)} videos is sound{why}")
    write_tables(out, files=files, chunks=chunks, codecs=codecs, samples=samples)
    report = PackReport(
        out=out,
        videos=len(durations),
        samples=len(samples),
        chunks=len(chunks),
        bytes=size,
        seconds_of_video=sum(durations.values()),
        refused=tuple(refused),
        ignored=tuple(ignored),
        resumed=resumed,
        was_complete=False,
    )
    manifest = {
        "format": "matinee pack",
        "version": VERSION,
        "profile": None if profile is None else asdict(profile),
        "classes": sorted({s.label for s in samples if s.label is not None}),
        "source_digest": source_digest,
        "report": report.counts(),
    }
    write_whole(out / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    return report


def _fit_samples(
    samples: tuple[Sample, ...], durations: dict[str, float]
) -> tuple[list[Sample], list[Failure]]:
    """Keep samples whose span lies in their video; a tenth of a second over is cut off."""
    kept: list[Sample] = []
    refused: list[Failure] = []
    for sample in samples:
        duration = durations.get(sample.video)
        if duration is None:
            continue  # the video itself is among the refusals
        last = max(sample.start or 0.0, sample.end or 0.0)
        if last > duration + 0.1 or (sample.start or 0.0) >= duration:
            reason = f"spans {sample.start or 0:g}–{last:g} s, but the video lasts {duration:.3f} s"
            refused.append(Failure(f"{sample.video} (sample {sample.id})", "refused", reason))
        else:
            kept.append(sample)
    return kept, refused


def _write_failures(out: Path, failures: list[Failure]) -> None:
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["path", "kind", "reason"])
    rows.writerows([failure.path, failure.kind, failure.reason] for failure in failures)
    write_whole(out / "failures.csv", text.getvalue().encode(errors="backslashreplace"))


def read_failures(out: Path) -> list[Failure]:
    """The rows of a pack's failures.csv."""
    with (out / "failures.csv").open(newline="", encoding="utf-8") as file:
        return [Failure(r["path"], r["kind"], r["reason"]) for r in csv.DictReader(file)]
