"""`matinee index`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matinee.cli.common import counting, err, parse
from matinee.cli.pack import Source, asks_for_kinds, refuse_address, tell
from matinee.pack.writing.index import index_videos


@dataclass(frozen=True)
class IndexCommand(Source):
    """Make a pack over videos where they lie, without encoding: tables only, ready in seconds.

    Each file's first frames are decoded, not the rest: damage further in shows when a clip is read.
    Decoding then costs what the files' own keyframes and sizes make it cost; pack for speed. The
    originals must stay where they are and unchanged. Labels and splits as in matinee pack.
    """

    workers: int | None = None
    """Videos looked at at a time. Default: the usable cores."""


def main(args: Sequence[str]) -> int:
    if asks_for_kinds(args):
        return 0
    command = parse(IndexCommand, args, "index")
    refuse_address(command.folder, "FOLDER")
    refuse_address(command.out, "--out")
    annotations = command.read()
    for note in annotations.notes:
        err.print(note)
    with counting("indexing", "videos") as step:
        report = index_videos(
            command.out,
            annotations,
            workers=command.workers,
            overwrite=command.overwrite,
            on_progress=lambda done, total, s: step(done, total, f"videos, {s / 60:.1f} min"),
        )
    return tell(report, command)
