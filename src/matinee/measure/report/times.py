"""Where a run's time went: a bar and a table of spans."""

from __future__ import annotations

from collections.abc import Sequence

from matinee.measure.draw import page
from matinee.measure.draw.formats import ABSENT, duration, percent
from matinee.measure.draw.plots import SPAN_COLOURS, share_bars
from matinee.measure.report.rundata import OTHER, RunData, span_seconds, untimed_validations

SPAN_NAMES = {
    "data_wait": "waiting for data", "h2d": "copy to the device", "forward": "forward",
    "backward": "backward", "comm": "communication", "optimizer": "optimizer",
    "validate": "validation", "save": "saving", OTHER: "rest of the loop",
}  # fmt: skip


def time(runs: Sequence[RunData]) -> str:
    timed = [(run, spans) for run in runs if sum((spans := span_seconds(run)).values()) > 0]
    if not timed:
        return page.note("No times were recorded.")
    names = [run.name for run, _ in timed]
    seconds = [spans for _, spans in timed]
    order = span_order(seconds)
    rows = []
    for span in order:
        cells = [
            f"{duration(held[span])} · {percent(held[span] / sum(held.values()))}"
            if span in held
            else ABSENT
            for held in seconds
        ]
        rows.append(("", SPAN_NAMES.get(span, span), cells))
    rows.append(("strong", "together", [duration(sum(held.values())) for held in seconds]))
    told = "; ".join(
        f"{name}: " + ", ".join(f"{span} {spent:.3g} s" for span, spent in held.items())
        for name, held in zip(names, seconds, strict=True)
    )
    svg = share_bars("time", names, seconds, about=f"Share of the time by span. {told}.")
    remarks = ["Wall-clock time of the training process, over the logged rows."]
    if OTHER in order:
        remarks.append("Rest of the loop: what training took beyond the named parts.")
    for run, _ in timed:
        if missing := untimed_validations(run):
            remarks.append(
                f"{run.name}: the time of {missing} of {len(run.val)} validations was not logged."
            )
        if run.environment.get("gpu"):
            remarks.append(
                f"{run.name} ran on a machine with a GPU: work that a GPU does by itself counts "
                "where the process waits for it."
            )
    boxes = [(SPAN_COLOURS.get(s, SPAN_COLOURS["other"]), SPAN_NAMES.get(s, s)) for s in order]
    return (
        page.box_legend(boxes)
        + page.figure("", html=svg)
        + page.table("Seconds and share of each span", names, rows)
        + page.note(" ".join(remarks))
    )


def span_order(seconds: Sequence[dict[str, float]]) -> list[str]:
    """Spans of any run, in the order of a step, OTHER last."""
    known = [name for name in SPAN_NAMES if any(name in held for held in seconds)]
    rest = sorted({name for held in seconds for name in held} - set(known))
    return [*(n for n in known if n != OTHER), *rest, *(n for n in known if n == OTHER)]
