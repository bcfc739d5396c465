"""`matinee info`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from matinee.cli.common import err, out, parse, table, write_json
from matinee.errors import ConfigError
from matinee.pack.format import FAILURES, part_name
from matinee.pack.images.image_set import ImageSet
from matinee.pack.mixture import Mixture
from matinee.pack.open import DataSet, open_data
from matinee.pack.reading.reader import Pack


@dataclass(frozen=True)
class InfoCommand:
    """What is inside a pack or an image set."""

    pack: Annotated[str, tyro.conf.Positional]
    sheet: Path | None = None
    """Draw a contact sheet to this PNG or SVG file (needs the extra [train])."""
    json: str | None = None
    """Write the numbers to this file; - for standard output."""


def main(args: Sequence[str]) -> int:
    command = parse(InfoCommand, args, "info")
    data = open_data(command.pack)
    facts = describe(data)
    if command.json != "-":
        _show(data, facts)
    write_json(command.json, facts)
    if command.sheet is not None:
        from matinee.measure.sheet import contact_sheet

        contact_sheet(data, command.sheet)
        (err if command.json == "-" else out).print(f"contact sheet: {command.sheet}")
    return 0


def describe(data: DataSet) -> dict[str, Any]:
    """The facts of a data set as plain values.

    Raises:
        ConfigError: it is several.
    """
    if isinstance(data, Mixture):
        raise ConfigError(f"{data.path}: describe one pack at a time")
    labels = data.samples.column("label").to_pylist()
    splits = data.samples.column("split").to_pylist()
    per_class = Counter(zip(labels, splits, strict=True))
    return {
        "path": str(data.path),
        **(_of_images(data) if isinstance(data, ImageSet) else _of_videos(data)),
        "samples": len(data),
        "columns": data.samples.column_names,
        "splits": data.splits(),
        "classes": [
            {
                "label": name,
                **{
                    split or "no split": per_class[(name, split)] for split in dict.fromkeys(splits)
                },
            }
            for name in data.classes
        ],
        "refused": data.meta["report"]["refused"],
    }


def _of_videos(pack: Pack) -> dict[str, Any]:
    sizes = Counter(f"{fmt.width}x{fmt.height}" for fmt in pack.formats)
    return {
        "kind": "index of original files" if pack.meta.get("profile") is None else "pack",
        "profile": pack.meta.get("profile"),
        "videos": pack.num_videos,
        "chunks": pack.num_chunks,
        "minutes": pack.seconds / 60,
        "frames": pack.num_frames,
        "bytes_per_frame": pack.meta["report"]["bytes"] / max(pack.num_frames, 1),
        "bytes": pack.meta["report"]["bytes"],
        "picture_sizes": dict(sizes),
    }


def _of_images(images: ImageSet) -> dict[str, Any]:
    height, width = images.size
    return {
        "kind": "image set",
        "bytes": images.pixels.nbytes,
        "picture_sizes": {f"{width}x{height}": len(images)},
    }


def _show(data: DataSet, facts: dict[str, Any]) -> None:
    if isinstance(data, ImageSet):
        out.print(f"{facts['path']}: image set")
        out.print(f"{facts['samples']} images, {facts['bytes'] / 1e6:.1f} MB of pixels")
    else:
        profile = facts["profile"]
        how = (
            f"{profile['name']} profile, stride {profile['stride']}, crf {profile['crf']}"
            if profile
            else "original files, indexed in place"
        )
        out.print(f"{facts['path']}: {how}")
        out.print(
            f"{facts['samples']} samples of {facts['videos']} videos in {facts['chunks']} chunks; "
            f"{facts['minutes']:.1f} minutes, {facts['frames']} frames, "
            f"{facts['bytes'] / 1e6:.1f} MB ({facts['bytes_per_frame'] / 1e3:.2f} KB a frame)"
        )
    sizes = facts["picture_sizes"]
    out.print(f"pictures: {', '.join(list(sizes)[:8])}{' …' if len(sizes) > 8 else ''}")
    splits = [key for key in facts["classes"][0] if key != "label"] if facts["classes"] else []
    if facts["classes"]:
        rows = [[row["label"], *(row[s] for s in splits)] for row in facts["classes"]]
        table(["class", *splits], rows)
    if facts["refused"]:
        listed = part_name(data.meta, FAILURES)
        out.print(f"{facts['refused']} files or samples were refused: {data.path}/{listed}")
