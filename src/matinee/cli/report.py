"""`matinee report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from matinee.cli.common import busy, out, parse
from matinee.measure.report.write import write_report


@dataclass(frozen=True)
class ReportCommand:
    """One self-contained HTML page: curves, the numbers of each task, confusion, calibration, clips
    classified, retrieved or reconstructed, and where the time went.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of runs; several are compared."""
    out: Path | None = None
    """The page. Default: report.html in the (first) run's folder."""


def main(args: Sequence[str]) -> int:
    command = parse(ReportCommand, args, "report")
    path = command.out or command.runs[0] / "report.html"
    with busy(f"drawing the report of {len(command.runs)} runs"):
        write_report(path, command.runs)
    out.print(f"report: {path}")
    return 0
