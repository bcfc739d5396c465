"""`matinee pack`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from matinee.cli.common import counting, err, out, parse, write_json
from matinee.errors import ConfigError
from matinee.pack.annotations import Annotations, read_class_folders, read_table
from matinee.pack.finish import Failure, PackReport
from matinee.pack.image_source import images_because
from matinee.pack.image_writer import write_images
from matinee.pack.images import MANIFEST as IMAGE_MANIFEST
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

    Images become an image set instead: all of one size, in one file. An archive (.tar, .tar.gz,
    .tgz) of them is read without being unpacked.
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
    images: bool = False
    """Make an image set. Needless for an archive or a folder of images without videos."""
    size: int | None = None
    """Of an image set: images become centre squares of so many pixels. Default: the size they have,
    if it is one."""
    limit: int | None = None
    """Of an image set: take the first so many of each class and split, by name."""


def main(args: Sequence[str]) -> int:
    command = parse(PackCommand, args, "pack")
    because = "--images" if command.images else None
    if because is None and command.labels is None:
        because = images_because(command.folder)
        if because is not None:
            err.print(f"{because}: making an image set")
    _refuse_idle(command, _OF_VIDEOS if because else _OF_IMAGES, because)
    if because is not None:
        return _pack_images(command)
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
            on_progress=lambda done, total, s: step(done, total, f"videos ({s / 60:.1f} min long)"),
        )  # fmt: skip
    if report.was_complete:
        err.print(f"{command.out} was complete already; --overwrite makes it anew")
    elif report.resumed:
        err.print(f"continued: {report.resumed} videos were packed before")
    return tell(report, command)


_OF_IMAGES = ("size", "limit")
_OF_VIDEOS = (
    "labels", "profile", "stride", "short_side", "crf", "preset", "chunk_seconds", "workers",
)  # fmt: skip


def _refuse_idle(command: PackCommand, names: Sequence[str], because: str | None) -> None:
    """Refuse options that would do nothing."""
    defaults = {field.name: field.default for field in fields(PackCommand)}
    for name in names:
        if getattr(command, name) != defaults[name]:
            what = f"an image set ({because})" if because else "a pack of videos"
            raise ConfigError(f"--{name.replace('_', '-')} has no effect on {what}: leave it out")


def _pack_images(command: PackCommand) -> int:
    with counting("decoding", "images") as step:
        report = write_images(
            command.out, command.folder, size=command.size, limit=command.limit,
            val_fraction=command.val_fraction, overwrite=command.overwrite, on_progress=step,
        )  # fmt: skip
    for note in report.notes:
        err.print(note)
    if report.was_complete:
        err.print(f"{command.out} was complete already; --overwrite makes it anew")
    say = err if command.json == "-" else out
    height, width = report.size
    say.print(
        f"{command.out}: {report.samples} images of {width}x{height} pixels in {report.classes} "
        f"classes, {report.bytes / 1e6:.1f} MB"
    )
    write_json(
        command.json,
        {
            **report.counts(),
            "out": str(command.out),
            "failures": [asdict(failure) for failure in report.refused],
        },
    )
    if report.ignored:
        say.print(f"{len(report.ignored)} other files ignored (listed in {IMAGE_MANIFEST})")
    if report.refused:
        return _tell_refused(say, report.refused, command, IMAGE_MANIFEST)
    say.print(f"next: matinee train RECIPE --data {command.out} --out runs/a")
    return 0


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
        return _tell_refused(say, report.refused, command, "failures.csv")
    pack = command.out
    say.print(f"next: matinee info {pack}   matinee train tsm --data {pack} --out runs/a")
    return 0


def _tell_refused(say: Console, refused: Sequence[Failure], command: Source, file: str) -> int:
    say.print(f"{len(refused)} refused (all in {command.out}/{file}):")
    for failure in refused[:5]:
        say.print(f"  {failure.path} {failure.reason}")
    if len(refused) > 5:
        say.print(f"  … and {len(refused) - 5} more")
    return 0 if command.skip_bad else 1
