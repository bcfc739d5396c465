"""What the commands share: consoles, tables, JSON files, parsing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any, TypeVar

import tyro
from rich.console import Console
from rich.table import Table

from matinee.files import naming
from matinee.training.show.bar import progress_bar

T = TypeVar("T")

# Names of files and classes are printed as they are: brackets are no markup.
out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


def parse(kind: Callable[..., T], args: Sequence[str], command: str, **more: Any) -> T:
    """Arguments of a command as a dataclass; its docstrings are the help."""
    parsed: T = tyro.cli(kind, args=args, prog=f"matinee {command}", **more)
    return parsed


def write_json(path: str | None, content: Any) -> None:
    """Write `content` to a file, or to standard output for "-"; nothing without a path."""
    if path is None:
        return
    text = json.dumps(content, indent=1) + "\n"
    if path == "-":
        print(text, end="")
    else:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with naming(path):
            Path(path).write_text(text)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Print a table; numbers to the right."""
    shown = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for i, name in enumerate(columns):
        number = all(isinstance(row[i], (int, float)) for row in rows)
        shown.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row))
    out.print(shown)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Say what takes a while and cannot be counted: a spinner on a terminal, else a line after two
    seconds.
    """
    if err.is_terminal:
        with err.status(what):
            yield
        return
    line = Timer(2.0, err.print, [f"{what} …"])
    line.daemon = True
    line.start()
    try:
        yield
    finally:
        line.cancel()


@contextmanager
def counting(name: str, unit: str = "") -> Iterator[Callable[..., None]]:
    """A progress bar, updated by `step(done, total, note="")`; on plain output a line each 10 %."""
    with progress_bar(err, "note", disable=not err.is_terminal) as bar:
        task = bar.add_task(name, total=None, note=unit)
        told = 0

        def step(done: int, total: int, note: str = "") -> None:
            nonlocal told
            bar.update(task, completed=done, total=total, note=note or unit)
            tenth = 10 * done // max(total, 1)
            if tenth < told:  # another phase
                told = 0
            if not err.is_terminal and tenth > told:
                told = tenth
                err.print(f"{name}: {done} of {total} {note or unit}".rstrip())

        yield step
