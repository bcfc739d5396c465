"""`matinee predict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from matinee.cli.common import err, out, parse, table, write_json
from matinee.evaluation.views import parse_views
from matinee.inference.predict import predict


@dataclass(frozen=True)
class PredictCommand:
    """Classify video files that were never packed."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Video files."""
    views: str = "3x1"
    """TEMPORALxSPATIAL clips a file whose probabilities are averaged."""
    top: int = 5
    """How many classes to show."""
    device: str = "auto"
    """auto: a GPU if there is one; cpu; cuda:1."""
    json: str | None = None
    """Write the predictions to this file; - for standard output."""


def main(args: Sequence[str]) -> int:
    command = parse(PredictCommand, args, "predict")
    rows = predict(
        command.run, command.files, views=parse_views(command.views), top=command.top,
        device=command.device, say=err.print,
    )  # fmt: skip
    write_json(command.json, rows)
    if command.json != "-":
        for row in rows:
            if "error" in row:
                continue
            shown = [[c["label"], float(c["probability"])] for c in row["classes"]]
            out.print(row["file"])
            table(["class", "probability"], shown)
    bad = [row for row in rows if "error" in row]
    for row in bad:
        err.print(f"matinee predict: {row['error']}")
    return 1 if bad else 0
