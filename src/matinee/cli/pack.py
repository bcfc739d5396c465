"""`matinee pack`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from matinee.cli.common import busy, counting, err, out, parse, write_json
from matinee.cli.for_clip import check_flags, profile_of
from matinee.cli.pack_run import run
from matinee.errors import ConfigError
from matinee.pack.annotations import Annotations, read_class_folders
from matinee.pack.annotations.finder import VideoFinder
from matinee.pack.annotations.registry import describe_kinds, read_annotations
from matinee.pack.images.image_set import MANIFEST as IMAGE_MANIFEST
from matinee.pack.images.source import images_because
from matinee.pack.images.writer import write_images
from matinee.pack.writing.finish import Failure, PackReport


@dataclass(frozen=True)
class Source:
    """Where videos and labels come from; shared by pack and index."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Videos, one folder a class (or train/, val/, test/ with class folders inside); with
    --annotations or --labels the folder where the videos are, that paths are relative to."""
    out: Path
    """The pack to make, a folder."""
    annotations: str | None = None
    """KIND:FILE[,FILE…], such as epic100:EPIC_100_train.csv, kinetics:train.csv,val.csv or
    webdataset:shards/{000..127}.tar; "help" lists the kinds."""
    labels: Path | None = None
    """A CSV table: path,label[,split,start,end,text,...], one row a sample. Short for --annotations
    table:FILE."""
    frames_fps: str | None = None
    """Of --annotations tsm: frames a second of the folders of frames. Default: 30."""
    val_fraction: float = 0.2
    """Without given splits: part of each class's videos, the last by name, held out as "val"."""
    skip_bad: bool = False
    """Exit 0 even if files were refused; they are listed in failures.csv all the same."""
    overwrite: bool = False
    """Replace a pack that is already there."""
    json: str | None = None
    """Write what was done to this file; - for standard output."""

    def read(self) -> Annotations:
        if not 0 <= self.val_fraction < 1:
            raise ConfigError(f"--val-fraction {self.val_fraction}: at least 0, below 1")
        fps = frame_rate(self.frames_fps)
        if self.labels is None and self.annotations is None:
            if fps is not None:
                raise ConfigError("--frames-fps has no effect without --annotations tsm:FILE")
            return read_class_folders(self.folder, val_fraction=self.val_fraction)
        if self.labels is not None and self.annotations is not None:
            raise ConfigError(
                "--labels FILE is short for --annotations table:FILE: give one of them"
            )
        if not self.folder.is_dir():
            raise ConfigError(f"{self.folder}: no such folder")
        with busy("reading annotations and finding videos"):
            return read_annotations(
                self.annotations or f"table:{self.labels}", VideoFinder(self.folder),
                val_fraction=self.val_fraction, frames_fps=fps,
            )  # fmt: skip


@dataclass(frozen=True)
class PackCommand(Source):
    """Encode videos into a pack: tar shards of ordinary MP4 chunks that decode fast at random.

    Stopped or killed, the same command continues. Files that cannot be read soundly are listed in
    failures.csv with the reason, and the exit status is then 1 unless --skip-bad.

    Images become an image set instead: all of one size, in one file. An archive (.tar, .tar.gz,
    .tgz) of them is read without being unpacked.
    """

    profile: Literal["small", "layered", "intra"] | None = None
    """layered (the default): clips at --stride decode only the frames they use; small: fewest
    bytes; intra: any frame at the cost of one, three times the bytes."""
    stride: int | None = None
    """Frames between reference frames of the layered profile: the stride you train with. Default:
    4."""
    gop: int | None = None
    """Frames from one keyframe to the next: fewer cost bytes and save time. Default: 8 strides
    (layered), 120 (small)."""
    for_clip: str | None = None
    """Choose the profile for clips of this shape, frames x stride as 16x4, or 8xuniform for one
    frame of each of 8 segments: a few seconds of some of the videos are encoded, and the table that
    it was chosen from is printed."""
    budget: str | None = None
    """With --for-clip: at most so many bytes, as 3KB/frame or 5MB/min. Default: 1.5 times those of
    the smallest profile."""
    short_side: int = 288
    """Shrink videos to this short side, in pixels; smaller ones stay as they are."""
    crf: int = 23
    """x264 quality, 0 (lossless) to 51."""
    preset: str = "medium"
    """x264 preset: faster ones encode faster and need more bytes."""
    chunk_seconds: float = 15.0
    """Length of a chunk."""
    workers: int | None = None
    """Processes that encode, a video or a minute of a long one each at a time. Default: the usable
    cores."""
    engine: Literal["local", "ray"] = "local"
    """ray: encode on the nodes of a Ray cluster, which must find the videos under the same paths;
    the pack is written here, so --out need not be shared."""
    ray_address: str | None = None
    """Of --engine ray: the cluster's address. Default: $RAY_ADDRESS, or a Ray of this machine."""
    shard: str | None = None
    """i/n: encode every n-th video only, beginning with the i-th, so that n jobs of an array share
    the work, each with the same --out. At the end run --merge once."""
    merge: bool = False
    """Make the pack of what the shards encoded: the same as one run makes. Names what is missing;
    the bytes are moved, a gigabyte at a time, so the disk never holds them twice."""
    images: bool = False
    """Make an image set. Needless for an archive or a folder of images without videos."""
    size: int | None = None
    """Of an image set: images become centre squares of so many pixels. Default: the size they have,
    if it is one."""
    limit: int | None = None
    """Of an image set: take the first so many of each class and split, by name."""


def main(args: Sequence[str]) -> int:
    if asks_for_kinds(args):
        return 0
    command = parse(PackCommand, args, "pack")
    refuse_address(command.folder, "FOLDER")
    refuse_address(command.out, "--out")
    because = "--images" if command.images else None
    if because is None and command.labels is None and command.annotations is None:
        because = images_because(command.folder)
        if because is not None:
            err.print(f"{because}: making an image set")
    _refuse_idle(command, _OF_VIDEOS if because else _OF_IMAGES, because)
    if because is not None:
        return _pack_images(command)
    check_flags(command)
    annotations = command.read()
    for note in annotations.notes:
        err.print(note)
    profile, choice = profile_of(command, annotations, err if command.json == "-" else out)
    report = run(command, command.out, annotations, profile)
    if report is None:
        return 0
    more: dict[str, object] = {
        "realtime_factor": report.realtime_factor,
        "uncut": [list(video) for video in report.uncut],
    }
    if choice is not None:
        more["choice"] = choice.as_dict()
    return tell(report, command, more)


_OF_IMAGES = ("size", "limit")
_OF_VIDEOS = (
    "annotations", "labels", "frames_fps",
    "profile", "stride", "gop", "for_clip", "budget", "short_side", "crf", "preset",
    "chunk_seconds", "workers", "engine", "ray_address", "shard", "merge",
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
        file = f"{command.out}/{IMAGE_MANIFEST}"
        return tell_refused(say, report.refused, file, skip_bad=command.skip_bad)
    say.print(f"next: matinee train RECIPE --data {command.out} --out runs/a")
    return 0


def tell(report: PackReport, command: Source, more: Mapping[str, object] | None = None) -> int:
    """Print what was made and what was refused; the exit status. `more` is for the JSON."""
    say = err if command.json == "-" else out
    say.print(
        f"{command.out}: {report.samples} samples of {report.videos} videos, "
        f"{report.seconds_of_video / 60:.1f} minutes, {report.bytes / 1e6:.1f} MB"
    )
    content = {
        **report.counts(),
        "out": str(command.out),
        "failures": [asdict(failure) for failure in report.refused],
        **(more or {}),
    }
    write_json(command.json, content)
    if report.ignored:
        say.print(f"{len(report.ignored)} other files ignored (listed in failures.csv)")
    if report.refused:
        file = f"{command.out}/failures.csv"
        return tell_refused(say, report.refused, file, skip_bad=command.skip_bad)
    pack = command.out
    say.print(f"next: matinee info {pack}   matinee train tsm --data {pack} --out runs/a")
    return 0


def tell_refused(say: Console, refused: Sequence[Failure], file: str, *, skip_bad: bool) -> int:
    """Print the first of what was refused; the exit status."""
    say.print(f"{len(refused)} refused (all in {file}):")
    for failure in refused[:5]:
        say.print(f"  {failure.path} {failure.reason}")
    if len(refused) > 5:
        say.print(f"  … and {len(refused) - 5} more")
    return 0 if skip_bad else 1


def refuse_address(path: Path, what: str) -> None:
    """Refuse an address, which a path holds with one slash; nothing of it is shown.

    Raises:
        ConfigError: it is one.
    """
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", str(path))
    if found:
        raise ConfigError(f"{what} {found[1]}://…: local packs only; copy it to or from there")


def asks_for_kinds(args: Sequence[str]) -> bool:
    """Whether `--annotations help` stands there; the kinds are then printed."""
    pairs = zip(args, [*args[1:], ""], strict=True)
    asked = "--annotations=help" in args or ("--annotations", "help") in pairs
    if asked:
        out.print(describe_kinds())
    return asked


def frame_rate(given: str | None) -> Fraction | None:
    """Frames a second from "30", "29.97" or "30000/1001".

    Raises:
        ConfigError: none of these, or outside 0 … 1000.
    """
    if given is None:
        return None
    try:
        fps = Fraction(given)
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"--frames-fps {given}: a number such as 30 or 30000/1001") from None
    if not 0 < fps <= 1000:
        raise ConfigError(f"--frames-fps {given}: above 0, at most 1000")
    return fps
