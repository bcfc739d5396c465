"""`matinee pack`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from matinee.cli.common import counting, err, out, parse, write_json
from matinee.errors import ConfigError
from matinee.pack.annotations import Annotations, read_class_folders, read_table
from matinee.pack.finish import PackReport
from matinee.pack.profiles import make_profile
from matinee.pack.writer import write_pack


@dataclass(frozen=True)
class Source:
    """Where videos and labels come from; shared by pack and index."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Videos, one folder a class (or train/, val/, test/ with class folders inside); with --labels
    the folder that its paths are relative to."""
    out: Path
    """The pack to make, a folder."""
    labels: Path | None = None
    """A CSV table: path,label[,split,start,end,text,...], one row a sample."""
    val_fraction: float = 0.2
    """Without given splits: part of each class's videos, the last by name, held out as "val"."""
    skip_bad: bool = False
    """Exit 0 even if files were refused; they are listed in failures.csv all the same."""
    overwrite: bool = False
    """Replace a pack that is already there."""
    json: str | None = None
    """Write what was done to this file; - for standard output."""

    def annotations(self) -> Annotations:
        if not 0 <= self.val_fraction < 1:
            raise ConfigError(f"--val-fraction {self.val_fraction}: at least 0, below 1")
        if self.labels is not None:
            if not self.folder.is_dir():
                raise ConfigError(f"{self.folder}: no such folder")
            return read_table(self.labels, self.folder, val_fraction=self.val_fraction)
        return read_class_folders(self.folder, val_fraction=self.val_fraction)


@dataclass(frozen=True)
class PackCommand(Source):
    """Encode videos into a pack: tar shards of ordinary MP4 chunks that decode fast at random.

    Stopped or killed, the same command continues. Files that cannot be read soundly are listed in
    failures.csv with the reason, and the exit status is then 1 unless --skip-bad.
    """

    profile: Literal["small", "layered", "intra"] = "layered"
    """layered: clips at --stride decode only the frames they use; small: fewest bytes; intra: any
    frame at the cost of one, three times the bytes."""
    stride: int = 4
    """Frames between reference frames of the layered profile: the stride you train with."""
    short_side: int = 288
    """Shrink videos to this short side, in pixels; smaller ones stay as they are."""
    crf: int = 23
    """x264 quality, 0 (lossless) to 51."""
    preset: str = "medium"
    """x264 preset: faster ones encode faster and need more bytes."""
    chunk_seconds: float = 15.0
    """Length of a chunk."""
    workers: int | None = None
    """Videos encoded at a time. Default: the usable cores."""


def main(args: Sequence[str]) -> int:
    command = parse(PackCommand, args, "pack")
    profile = make_profile(
        command.profile, stride=command.stride, crf=command.crf, preset=command.preset,
        short_side=command.short_side, chunk_seconds=command.chunk_seconds,
    )  # fmt: skip
    annotations = command.annotations()
    for note in annotations.notes:
        err.print(note)
    with counting("packing", "videos") as step:
        report = write_pack(
            command.out, annotations, profile, workers=command.workers,
            overwrite=command.overwrite,
            on_progress=lambda done, total, s: step(done, total, f"videos, {s / 60:.1f} min"),
        )  # fmt: skip
    if report.was_complete:
        err.print(f"{command.out} was complete already; --overwrite makes it anew")
    elif report.resumed:
        err.print(f"continued: {report.resumed} videos were packed before")
    return tell(report, command)


def tell(report: PackReport, command: Source) -> int:
    """Print what was made and what was refused; the exit status."""
    say = err if command.json == "-" else out
    say.print(
        f"{command.out}: {report.samples} samples of {report.videos} videos, "
        f"{report.seconds_of_video / 60:.1f} minutes, {report.bytes / 1e6:.1f} MB"
    )
    content = {
        **report.counts(),
        "out": str(command.out),
        "failures": [asdict(failure) for failure in report.refused],
    }
    write_json(command.json, content)
    if report.ignored:
        say.print(f"{len(report.ignored)} other files ignored (listed in failures.csv)")
    if report.refused:
        say.print(f"{len(report.refused)} refused (all in {command.out}/failures.csv):")
        for failure in report.refused[:5]:
            say.print(f"  {failure.path} {failure.reason}")
        if len(report.refused) > 5:
            say.print(f"  … and {len(report.refused) - 5} more")
        return 0 if command.skip_bad else 1
    pack = command.out
    say.print(f"next: matinee info {pack}   matinee train tsm --data {pack} --out runs/a")
    return 0
