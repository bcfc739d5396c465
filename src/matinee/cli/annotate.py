"""`matinee annotate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import tyro

from matinee.cli.common import busy, err, out, parse, write_json
from matinee.cli.pack import asks_for_kinds, frame_rate, refuse_address, tell_refused
from matinee.errors import ConfigError
from matinee.pack.annotations.registry import read_annotations
from matinee.pack.writing.annotate import annotate_pack


@dataclass(frozen=True)
class AnnotateCommand:
    """Replace the samples of a pack, or of an index, without touching its video.

    Names in the annotations are matched with the videos of the pack as they would be with files
    when packing. Who reads the pack meanwhile sees the old samples or the new. Samples that fit no
    video are listed in the pack's failures, and the exit status is then 1 unless --skip-bad. The
    samples before stay in the folder until the next time.
    """

    pack: Annotated[Path, tyro.conf.Positional]
    """The pack."""
    annotations: str
    """KIND:FILE[,FILE…], as of matinee pack; "help" lists the kinds."""
    val_fraction: float = 0.2
    """Without given splits: part of each class's videos, the last by name, held out as "val"."""
    frames_fps: str | None = None
    """Of --annotations tsm: the rate that folders of frames were packed at. Default: 30."""
    skip_bad: bool = False
    """Exit 0 even if samples fit no video."""
    json: str | None = None
    """Write what was done to this file; - for standard output."""


def main(args: Sequence[str]) -> int:
    if asks_for_kinds(args):
        return 0
    command = parse(AnnotateCommand, args, "annotate")
    refuse_address(command.pack, "PACK")
    if not 0 <= command.val_fraction < 1:
        raise ConfigError(f"--val-fraction {command.val_fraction}: at least 0, below 1")
    fps: Fraction | None = frame_rate(command.frames_fps)
    with busy(f"reading {command.annotations}"):
        report, found = annotate_pack(
            command.pack,
            lambda videos: read_annotations(
                command.annotations, videos, val_fraction=command.val_fraction, frames_fps=fps
            ),
        )
    for note in found.notes:
        err.print(note)
    say = err if command.json == "-" else out
    say.print(
        f"{command.pack}: {report.samples} samples of {report.videos} videos in {report.classes} "
        f"classes; {report.unused} videos have none"
    )
    write_json(
        command.json,
        {
            **report.counts(),
            "out": str(command.pack),
            "failures": [asdict(failure) for failure in report.refused],
        },
    )
    if report.refused:
        file = f"{command.pack}/{report.failures_file}"
        return tell_refused(say, report.refused, file, skip_bad=command.skip_bad)
    return 0
