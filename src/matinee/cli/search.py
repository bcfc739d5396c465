"""`matinee search`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from matinee.cli.common import counting, err, out, parse, table, write_json
from matinee.evaluation.views import parse_views
from matinee.files import write_whole
from matinee.inference.load import LoadedRun, load_run
from matinee.inference.search import Found, Hit, search
from matinee.measure.draw import page
from matinee.measure.report.strips import read_strip
from matinee.pack.open import DataSet, open_data


@dataclass(frozen=True)
class SearchCommand:
    """Find the clips of a pack that a sentence describes. The first search of a pack embeds its
    clips and keeps their vectors beside the run; the next ones answer in seconds.
    """

    text: Annotated[str, tyro.conf.Positional]
    """What to find, such as "a person bends down"."""
    pack: Annotated[str, tyro.conf.Positional]
    """Where to look."""
    run: Path
    """Folder of a contrastive run."""
    top: int = 12
    """How many clips to show."""
    split: str | None = None
    """Which samples: a split, or column=value[,value…]. Default: all."""
    views: str = "1x1"
    """TEMPORALxSPATIAL clips a sample whose vectors are averaged."""
    workers: int | None = None
    """Decoders. Default: the usable cores, at most 16."""
    on_error: Literal["raise", "mask"] = "raise"
    """A clip that cannot be read: stop, or leave the sample out and count it."""
    device: str = "auto"
    """auto: a GPU if there is one; cpu; cuda:1."""
    out: Path = Path("search.html")
    """A page with frames of the clips found."""
    json: str | None = None
    """Write what was found to this file as well; - for standard output."""


def main(args: Sequence[str]) -> int:
    command = parse(SearchCommand, args, "search")
    views = parse_views(command.views)
    pack, run = open_data(command.pack), load_run(command.run, device=command.device)
    with counting("embedding", "clips") as step:
        found = search(
            run, pack, command.text, top=command.top, split=command.split, views=views,
            workers=command.workers, mask_errors=command.on_error == "mask", say=err.print,
            on_progress=step,
        )  # fmt: skip
    if found.cut_to is not None:
        err.print(f"the text is longer than {found.cut_to} tokens and was cut to them")
    write_page(command.out, found, pack, run)
    write_json(command.json, asdict(found))
    if command.json != "-":
        rows = [[hit.rank, hit.similarity, hit.sample, _about(hit)] for hit in found.hits]
        table(["", "similarity", "sample", "said about it"], rows)
    (err if command.json == "-" else out).print(
        f"{len(found.hits)} of {found.candidates} clips, {found.skipped} skipped: {command.out}"
    )
    return 0


def write_page(path: Path, found: Found, pack: DataSet, run: LoadedRun) -> None:
    """A self-contained page with a few frames of each clip found."""
    note = (
        f"The {len(found.hits)} nearest of {found.candidates:,} clips in {pack.name}, by "
        f"{run.folder.path.resolve().name} at step {run.step}. Similarity is the cosine between "
        "the clip's vector and the text's. Frames are evenly spaced over the sample, in order."
    )
    if found.skipped:
        note += f" {found.skipped:,} clips could not be read."
    if found.cut_to is not None:
        note += f" The text is longer than {found.cut_to} tokens and was cut to them."
    cards = "".join(_card(hit, pack) for hit in found.hits)
    html = (
        f"<header>\n<h1>“{page.text(found.text.strip())}”</h1>\n{page.paragraphs(note)}</header>\n"
        f"<main>\n{cards}</main>"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = page.shell(f"{found.text.strip()} – matinee search", html=html, data=asdict(found))
    write_whole(path, whole.encode())


def _card(hit: Hit, pack: DataSet) -> str:
    strip = read_strip(pack, hit.index)
    height, width = strip.size
    images = "".join(
        f'<img src="{uri}" width="{width}" height="{height}" alt="{page.text(about)}">'
        for uri, about in strip.images
    )
    frames = page.note(strip.error) if strip.error else f'<div class="strip">{images}</div>'
    said = _about(hit)
    return (
        f'<figure class="example" aria-label="{page.text(f"Rank {hit.rank}")}">{frames}'
        f"<figcaption><b>{hit.rank}</b> "
        f'<span class="quiet">· similarity</span> {hit.similarity:.3f} '
        f'<span class="quiet">· {page.text(hit.sample)}</span>'
        + (f'<p class="note">{page.text(said)}</p>' if said else "")
        + "</figcaption></figure>\n"
    )


def _about(hit: Hit) -> str:
    """Its captions, or its label."""
    return " · ".join(hit.texts) or hit.label or ""
