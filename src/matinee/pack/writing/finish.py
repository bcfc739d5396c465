"""The end of making a pack, encoded or indexed: samples, failures, tables, and last pack.json."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from matinee.errors import PackError
from matinee.files import write_whole
from matinee.pack.annotations import Annotations
from matinee.pack.format import FAILURES, MANIFEST, VERSION, part_name, read_manifest
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
    """What packing did. `seconds_of_video` is the footage that was packed.

    `realtime_factor`: seconds of video this run packed in a second. `uncut`: long videos that one
    worker each had to encode from beginning to end, and why. Neither is a fact of the pack.
    """

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
    realtime_factor: float = 0.0
    uncut: tuple[tuple[str, str], ...] = ()

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
    samples, beyond = fit_samples(annotations.rows.table, durations)
    unusable = [Failure(what, "refused", reason) for what, reason in annotations.refused]
    refused = refused + unusable + beyond
    ignored = [Failure(path, "ignored", reason) for path, reason in annotations.bystanders]
    write_failures(out / FAILURES, refused + ignored)
    if not samples.num_rows:
        why = f"; the first refusal: {refused[0].path} {refused[0].reason}" if refused else ""
        raise PackError(f"none of {len(annotations.videos)} videos is sound{why}")
    write_tables(out, files=files, chunks=chunks, codecs=codecs, samples=samples)
    report = PackReport(
        out=out,
        videos=len(durations),
        samples=samples.num_rows,
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
        "classes": classes_of(samples),
        "source_digest": source_digest,
        "report": report.counts(),
    }
    write_whole(out / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    return report


def classes_of(samples: pa.Table) -> list[str]:
    """The labels that occur, in order."""
    return sorted(label for label in samples.column("label").unique().to_pylist() if label)


def fit_samples(samples: pa.Table, durations: dict[str, float]) -> tuple[pa.Table, list[Failure]]:
    """Keep samples whose span lies in their video; a tenth of a second over is cut off.

    Samples of a video without a duration are left out: the video itself is among the refusals.
    """
    if not samples.num_rows:
        return samples, []
    video = samples.column("video").dictionary_encode().combine_chunks()
    known = np.array([durations.get(name, np.nan) for name in video.dictionary.to_pylist()])
    duration = known[video.indices.to_numpy()]
    start = samples.column("start_s").fill_null(0.0).to_numpy()
    last = np.maximum(start, samples.column("end_s").fill_null(0.0).to_numpy())
    beyond = (last > duration + 0.1) | (start >= duration)  # False for NaN
    refused = []
    for row in np.flatnonzero(beyond).tolist():
        reason = f"spans {start[row]:g}–{last[row]:g} s, but the video lasts {duration[row]:.3f} s"
        name, whole = (samples.column(c)[row].as_py() for c in ("sample", "video"))
        refused.append(Failure(f"{whole} (sample {name})", "refused", reason))
    kept = ~beyond & ~np.isnan(duration)
    return samples if kept.all() else samples.filter(pa.array(kept)), refused


def write_failures(file: Path, failures: list[Failure]) -> None:
    """Write what is not in a pack, a line each."""
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["path", "kind", "reason"])
    rows.writerows([failure.path, failure.kind, failure.reason] for failure in failures)
    write_whole(file, text.getvalue().encode(errors="backslashreplace"))


def read_failures(out: Path) -> list[Failure]:
    """What is not in a pack, as it lists it itself."""
    file = out / part_name(read_manifest(out), FAILURES)
    with file.open(newline="", encoding="utf-8") as rows:
        return [Failure(r["path"], r["kind"], r["reason"]) for r in csv.DictReader(rows)]
