"""What a measurement says: tables, plots and numbers, for a terminal, a folder and a page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matinee.files import write_whole
from matinee.measure import machine
from matinee.measure.draw import figures, page
from matinee.measure.draw.figures import Figure


@dataclass(frozen=True)
class Table:
    """Rows of cells as they are shown; the first column names the row."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    heading: str = ""
    note: str = ""


@dataclass(frozen=True)
class Part:
    """One question and its answer: text (blank lines between paragraphs), tables, plots by name.

    `name` is short, of letters, digits and dashes: an id on the page, part of a plot's file name.
    """

    name: str
    heading: str
    text: str = ""
    tables: Sequence[Table] = ()
    plots: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """A whole measurement. `data` holds its numbers for programs, as JSON can; `benchmark` and
    `machine` are no keys of it, for `write_result` adds these.
    """

    name: str
    title: str
    lead: str
    parts: Sequence[Part]
    data: Mapping[str, Any]


def options_of(options: object) -> dict[str, str]:
    """Options of a measurement for its JSON, but for where files lie: that is nobody else's."""
    places = ("out", "keep", "videos")
    return {name: str(value) for name, value in vars(options).items() if name not in places}


def write_result(result: Result, folder: Path, *, packages: Sequence[str] = ("torch",)) -> Path:
    """Write NAME.json (numbers and the machine), a PNG and an SVG of each plot, and NAME.html.

    Args:
        packages: whose versions stand with the machine.

    Returns:
        The page's path.

    Raises:
        MissingExtra: matplotlib is not installed.
        ValueError: the result has a key that is added here.
    """
    data = {"benchmark": result.name, "machine": machine.describe("matinee", *packages)}
    if taken := sorted(data.keys() & result.data.keys()):
        raise ValueError(f"{result.name}: the keys {taken} of its data are added to every result")
    data |= result.data
    folder.mkdir(parents=True, exist_ok=True)
    dumped = json.dumps(data, indent=1, allow_nan=False)
    write_whole(folder / f"{result.name}.json", (dumped + "\n").encode())
    for part in result.parts:
        for plot, figure in part.plots.items():
            for kind in ("svg", "png"):
                figures.save(figure, folder / f"{result.name}-{part.name}-{plot}.{kind}")
    path = folder / f"{result.name}.html"
    write_whole(path, _page(result, data).encode())
    return path


def _page(result: Result, data: Mapping[str, Any]) -> str:
    links = "".join(
        f'<li><a href="#{p.name}">{page.text(p.heading)}</a></li>' for p in result.parts
    )
    on = data["machine"]
    where = (
        f"Measured on {on['cores']} cores of {on['cpu']}, {on['memory_gib']} GiB, {on['system']}."
    )
    html = (
        f"<header>\n<h1>{page.text(result.title)}</h1>\n{page.paragraphs(result.lead)}"
        f"{page.note(where)}"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n</header>\n<main>\n'
        + "".join(page.section(p.name, p.heading, html=_part(p)) for p in result.parts)
        + page.details("Numbers and machine, as JSON", json.dumps(data, indent=1))
        + "</main>"
    )
    return page.shell(result.title, html=html, data=dict(data))


def _part(part: Part) -> str:
    html = page.paragraphs(part.text)
    for table in part.tables:
        rows = [("", row[0], row[1:]) for row in table.rows]
        if table.heading:
            html += f"<h3>{page.text(table.heading)}</h3>\n"
        html += page.table(table.heading or part.heading, table.columns[1:], rows)
        html += page.note(table.note)
    drawn = [
        page.figure("", html=figures.inline(figure, f"{part.name}-{plot}"), caption=figure.about)
        for plot, figure in part.plots.items()
    ]
    return html + (f'<div class="grid">{"".join(drawn)}</div>\n' if drawn else "")
