"""One HTML page about one or several runs: how well, how, on what, and where the time went."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matinee.errors import ConfigError
from matinee.measure import page, sections
from matinee.measure.examples import Example, find_examples
from matinee.measure.rundata import (
    RunData,
    clips_per_second,
    curve,
    plain,
    read_runs,
    span_seconds,
)


def write_report(
    path: str | Path,
    runs: Sequence[str | Path],
    *,
    title: str = "Training report",
    intro: str = "",
    examples: int = 8,
) -> Path:
    """Write one self-contained page (no scripts, no network) about run folders.

    The same folders give the same bytes. Accuracy comes from a run's `eval-*.json` (its own
    validation split first, then the newest step, then the most views), else from its last
    validation during training.

    Args:
        intro: plain text under the title; a blank line begins a new paragraph.
        examples: how many samples to show frames of.

    Returns:
        The page's path.

    Raises:
        ConfigError: no runs given, no run in a folder, a damaged file, or no such split.
        MissingExtra: matplotlib is not installed.
    """
    if not runs:
        raise ConfigError("a report needs at least one run folder")
    if examples < 0:
        raise ConfigError(f"examples={examples}: 0 or more")
    found = read_runs(runs)
    shown, remark = find_examples(found, count=examples)
    parts = [
        ("summary", "Final numbers", sections.summary(found)),
        ("curves", "Training and validation", sections.curves(found)),
        ("confusion", "What is mistaken for what", sections.confusion(found)),
        ("examples", "Examples", sections.example_clips(found, shown, remark)),
        ("time", "Where the time went", sections.time(found)),
        ("configuration", "Configuration and environment", sections.configuration(found)),
    ]
    links = "".join(f'<li><a href="#{name}">{head}</a></li>' for name, head, _ in parts)
    html = (
        f"<header>\n<h1>{page.text(title)}</h1>\n{page.paragraphs(intro)}"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n</header>\n<main>\n'
        + "".join(page.section(name, head, html=body) for name, head, body in parts)
        + "</main>"
    )
    data = {"title": title, "runs": [_data(run) for run in found], "examples": _told(shown)}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page.shell(title, html=html, data=plain(data)), encoding="utf-8")
    return path


def _data(run: RunData) -> dict[str, Any]:
    """What the page says of a run, for programs."""
    scores = None
    if run.scores:
        scores = dataclasses.asdict(dataclasses.replace(run.scores, predictions={}))
        del scores["predictions"]
        scores["confusion"] = run.scores.confusion.tolist()
    curves = {
        "loss": curve(run.train, "loss"),
        "lr": curve(run.train, "lr"),
        "val_top1": curve(run.val, "top1"),
    }
    return {
        "name": run.name,
        "path": str(run.path),
        "scores": scores,
        "clips_per_s": clips_per_second(run),
        "seconds": span_seconds(run),
        "curves": {
            key: {"epoch": points[0].tolist(), "value": points[1].tolist()}
            for key, points in curves.items()
        },
        "config": dataclasses.asdict(run.config),
        "environment": run.environment,
    }


def _told(shown: Sequence[Example]) -> list[dict[str, Any]]:
    """Examples without their pictures."""
    kept = ("sample", "label", "text", "error")
    return [
        {name: getattr(example, name) for name in kept}
        | {"guesses": [dataclasses.asdict(guess) for guess in example.guesses]}
        for example in shown
    ]
