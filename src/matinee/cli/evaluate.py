"""`matinee eval`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from matinee.cli.common import counting, out, parse, table, write_json
from matinee.evaluation.views import parse_views
from matinee.inference.evaluate import evaluate


@dataclass(frozen=True)
class EvalCommand:
    """Evaluate a run: top-1/5, macro F1, per-class accuracy, confusion matrix."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    views: str = "1x1"
    """TEMPORALxSPATIAL clips a sample whose probabilities are averaged, such as 3x1 or 10x3."""
    data: Path | None = None
    """Another pack than the one the run was trained on."""
    split: str | None = None
    """Which samples: a split, or column=value[,value…]. Default: the run's validation split."""
    batch_size: int | None = None
    """Clips at a time. Default: the run's."""
    workers: int | None = None
    """Decoders. Default: the usable cores, at most 16."""
    on_error: Literal["raise", "mask"] = "raise"
    """A clip that cannot be read: stop, or skip the sample and count it."""
    device: str = "auto"
    """auto: a GPU if there is one; cpu; cuda:1."""
    json: str | None = None
    """Write metrics and predictions to this file as well; - for standard output."""


def main(args: Sequence[str]) -> int:
    command = parse(EvalCommand, args, "eval")
    views = parse_views(command.views)
    with counting("evaluating", "clips") as step:
        report = evaluate(
            command.run, data=command.data, split=command.split, views=views,
            batch_size=command.batch_size, workers=command.workers, device=command.device,
            mask_errors=command.on_error == "mask", on_progress=step,
        )  # fmt: skip
    write_json(command.json, report)
    if command.json != "-":
        show(report)
    return 0


def show(report: dict[str, Any]) -> None:
    """Print the metrics as tables."""
    out.print(
        f"{report['run']} at step {report['step']} on {report['data']} ({report['split']}), "
        f"{report['views']} views: {report['samples']} samples, {report['skipped']} skipped"
    )
    table(
        ["top-1", "top-5", "macro F1"],
        [[float(report[name]) for name in ("top1", "top5", "macro_f1")]],
    )
    classes = report["classes"]
    rows = []
    for i, name in enumerate(classes):
        accuracy = report["per_class"][name]
        counts = report["confusion"][i]
        rows.append([name, "–" if accuracy is None else f"{accuracy:.3f}", sum(counts), *counts])
    if len(classes) <= 20:
        short = [name if len(name) <= 10 else f"{name[:9]}…" for name in classes]
        table(["true class", "accuracy", "samples", *short], rows)
    else:
        table(["true class", "accuracy", "samples"], [row[:3] for row in rows])
