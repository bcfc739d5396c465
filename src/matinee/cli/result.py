"""Showing a measurement on a terminal, and writing its files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from matinee.cli.common import busy, out, table
from matinee.errors import ConfigError
from matinee.extras import require
from matinee.measure.result import Result, write_result


def check_folder(folder: Path) -> None:
    """Whether `keep_result` will be able to write there: asked before minutes of measuring. Nothing
    is made yet, for measuring may refuse what it was given.

    Raises:
        ConfigError: the folder cannot be made, or not written to.
        MissingExtra: matplotlib is not installed.
    """
    require("matplotlib", "train")
    path = folder.absolute()
    there = next(place for place in (path, *path.parents) if place.exists())
    if not there.is_dir():
        raise ConfigError(f"{folder} cannot be a folder: {there} is a file; choose another")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder}: nothing can be written to {there}; choose another folder")


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
