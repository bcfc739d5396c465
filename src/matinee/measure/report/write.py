"""One HTML page about one or several runs: how well, how, on what, and where the time went."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matinee.errors import ConfigError
from matinee.files import write_whole
from matinee.measure.draw import page
from matinee.measure.report import cards, classes, sections, times
from matinee.measure.report.examples import Example, find_examples
from matinee.measure.report.reconstructions import find_reconstructions
from matinee.measure.report.retrievals import Retrieval, find_retrievals
from matinee.measure.report.rundata import (
    AXES,
    RunData,
    clips_per_second,
    curve,
    of_kind,
    plain,
    read_runs,
    span_seconds,
)

_RECONSTRUCTED = 4  # clips of each masked run, at most


def write_report(
    path: str | Path,
    runs: Sequence[str | Path],
    *,
    title: str = "Training report",
    intro: str = "",
    examples: int = 8,
) -> Path:
    """Write one self-contained page (no scripts, no network) about run folders.

    Runs may be of different tasks. The same folders give the same bytes. Final numbers come from a
    run's `eval-*.json` (its own validation split first, then the newest step, then the most views),
    else from its last validation during training.

    Args:
        intro: plain text under the title; a blank line begins a new paragraph.
        examples: how many samples, or captions, to show frames of; of masked runs at most four
            clips are shown.

    Returns:
        The page's path.

    Raises:
        ConfigError: no runs given, no run in a folder, a damaged file, or no such split.
        MissingExtra: matplotlib or Pillow is not installed.
    """
    if not runs:
        raise ConfigError("a report needs at least one run folder")
    if examples < 0:
        raise ConfigError(f"examples={examples}: 0 or more")
    found = read_runs(runs)
    parts, told = _parts(found, examples)
    links = "".join(f'<li><a href="#{name}">{head}</a></li>' for name, head, _ in parts)
    html = (
        f"<header>\n<h1>{page.text(title)}</h1>\n{page.paragraphs(intro)}"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n</header>\n<main>\n'
        + "".join(page.section(name, head, html=body) for name, head, body in parts)
        + "</main>"
    )
    data = {"title": title, "runs": [_data(run) for run in found], **told}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page.shell(title, html=html, data=plain(data)).encode())
    return path


def _parts(runs: list[RunData], count: int) -> tuple[list[tuple[str, str, str]], dict[str, Any]]:
    """Sections as (id, heading, markup) and what programs are told of the clips they show.

    A section that none of the tasks can fill is left out.
    """
    told: dict[str, Any] = {}
    clips = []
    if of_one := of_kind(runs, "classification"):
        shown, remark = find_examples(of_one, count=count)
        told["examples"] = [_example(example) for example in shown]
        clips.append(("examples", "Examples", cards.example_clips(of_one, shown, remark)))
    if of_one := of_kind(runs, "contrastive"):
        found, remark = find_retrievals(of_one, count=count)
        told["retrievals"] = [_retrieval(retrieval) for retrieval in found]
        html = cards.retrieved_clips(of_one, found, remark)
        clips.append(("retrieval", "Captions and the clips they find", html))
    if of_one := of_kind(runs, "masked"):
        html = ""
        for run in of_one:
            drawn, remark = find_reconstructions(run, count=min(count, _RECONSTRUCTED))
            html += cards.reconstructed_clips(run, drawn, remark)
        clips.append(("reconstruction", "Hidden patches, reconstructed", html))
    parts = [
        ("summary", "Final numbers", sections.summary(runs)),
        ("differences", "What differs", sections.differences(runs)),
        ("curves", "Training and validation", sections.curves(runs)),
        ("confusion", "What is mistaken for what", classes.confusion(runs)),
        ("calibration", "Calibration", classes.calibration(runs)),
        *clips,
        ("time", "Where the time went", times.time(runs)),
        ("configuration", "Configuration and environment", sections.configuration(runs)),
    ]
    return [part for part in parts if part[2]], told


def _data(run: RunData) -> dict[str, Any]:
    """What the page says of a run, for programs."""
    scores = None
    if run.scores:
        scores = dataclasses.asdict(dataclasses.replace(run.scores, predictions=()))
        del scores["predictions"]
        if run.scores.confusion is not None:
            scores["confusion"] = run.scores.confusion.tolist()
    curves = {
        key: {axis: curve(run, rows, of, axis) for axis in AXES}
        for key, rows, of in (
            ("loss", run.train, "loss"),
            ("lr", run.train, "lr"),
            ("train_top1", run.train, "top1"),
            (f"val_{run.headline}", run.val, run.headline),
        )
    }
    return {
        "name": run.name,
        "path": str(run.path),
        "task": run.kind,
        "scores": scores,
        "clips_per_s": clips_per_second(run),
        "seconds": span_seconds(run),
        "curves": {
            key: {axis: points[0].tolist() for axis, points in over.items()}
            | {"value": over["epoch"][1].tolist()}
            for key, over in curves.items()
        },
        "config": run.config.to_dict(),
        "environment": run.environment,
    }


def _example(example: Example) -> dict[str, Any]:
    """Without its pictures."""
    return {
        "sample": example.strip.sample,
        "label": example.label,
        "texts": example.strip.texts,
        "error": example.strip.error,
        "guesses": [dataclasses.asdict(guess) for guess in example.guesses],
    }


def _retrieval(found: Retrieval) -> dict[str, Any]:
    """Without its pictures."""
    return {
        "text": found.text,
        "sample": found.own.sample,
        "nearest": (found.nearest or found.own).sample,
        "places": [dataclasses.asdict(place) for place in found.places],
    }
