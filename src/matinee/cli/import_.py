"""`matinee import`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from matinee.cli.common import busy, err, out, parse, table, write_json
from matinee.errors import ConfigError
from matinee.extras import require
from matinee.files import write_whole
from matinee.models.weights.convert import Converted, convert_weights


@dataclass(frozen=True)
class ImportCommand:
    """Turn published weights into a safetensors file with the names used here.

    The project is told by the names in the file: timm, TSM, CLIP (OpenAI, open_clip), AVION,
    LaViLa, VideoMAE (V1, V2). `matinee train … --model.pretrained` takes the published file as
    well as the one written here.
    """

    weights: Annotated[Path, tyro.conf.Positional]
    """A .safetensors or torch file. Code in it is not run."""
    out: Path
    """The .safetensors file to write."""
    model: str | None = None
    """The timm network it belongs to. Default: told by the shapes, for the most common ones."""
    min_match: float = 0.9
    """Refuse the file if less than this part of the weights has a counterpart."""
    json: str | None = None
    """Write the report to this file as well; - for standard output."""


def main(args: Sequence[str]) -> int:
    command = parse(ImportCommand, args, "import")
    if command.out.exists() and command.out.samefile(command.weights):
        raise ConfigError(f"--out {command.out} is the file to import: name another")
    with busy(f"translating {command.weights}"):
        done = convert_weights(command.weights, backbone=command.model, min_match=command.min_match)
        save = require("safetensors.torch", "train").save
        write_whole(command.out, save(done.tensors, metadata=done.metadata))
    facts = {**done.metadata, "out": str(command.out), **asdict(done.report)}
    write_json(command.json, facts)
    if command.json != "-":
        _show(done, command.weights)
    (err if command.json == "-" else out).print(f"written: {command.out}")
    return 0


def _show(done: Converted, source: Path) -> None:
    report = done.report
    numbers = sum(value.numel() for value in done.tensors.values())
    out.print(
        f"{source}: {report.layout} names, {done.backbone}, {numbers / 1e6:.1f} M numbers, "
        f"{report.share:.1%} of the weights match"
    )
    rows = [
        ["matched", report.matched],
        ["missing", report.missing],
        ["unexpected", report.unexpected],
        ["left aside", report.aside],
    ]
    table(
        ["", "tensors", "the first of them"],
        [[what, len(keys), ", ".join(keys[:3])] for what, keys in rows],
    )
    for note in report.notes:
        out.print(f"note: {note}")
