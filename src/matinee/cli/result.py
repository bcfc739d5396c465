"""Showing a measurement on a terminal, and writing its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matinee.cli.common import busy, out, table
from matinee.measure.result import Result, write_result


def show_result(result: Result) -> None:
    """Its tables and texts, in order."""
    for part in result.parts:
        out.print(f"\n{part.heading}", style="bold")
        if part.text:
            out.print(part.text)
        for shown in part.tables:
            table(shown.columns, shown.rows, title=shown.heading)
            if shown.note:
                out.print(shown.note)


def keep_result(result: Result, folder: Path, *, packages: Sequence[str] = ("torch",)) -> None:
    """Write JSON, plots and page into a folder, and say where they are."""
    with busy("drawing the page"):
        path = write_result(result, folder, packages=packages)
    out.print(f"\n{path} with {result.name}.json and its plots beside")
