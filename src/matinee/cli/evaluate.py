"""`matinee eval`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from matinee.cli.common import counting, out, parse, table, write_json
from matinee.errors import ConfigError
from matinee.evaluation.views import Average, parse_views
from matinee.inference.egomcq import egomcq
from matinee.inference.evaluate import evaluate
from matinee.inference.load import load_run
from matinee.inference.zero_shot import zero_shot


@dataclass(frozen=True)
class EvalCommand:
    """Evaluate a run: accuracy, F1, calibration and confusion of classification; recall and ranks
    of retrieval, with columns verb and noun also EK-100 MIR; the loss of a masked autoencoder.
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    best: bool = False
    """Take the checkpoint that validated best instead of the newest."""
    views: str | None = None
    """TEMPORALxSPATIAL clips a sample that are averaged, such as 3x1 or 10x3. Default: as the run's
    recipe says."""
    average: Average = "probabilities"
    """What classification averages over views: probabilities, or logits before they become such."""
    sentences: Path | None = None
    """For EK-100 MIR: the benchmark's table of sentences (EPIC_100_retrieval_test_sentence.csv),
    whose figures are comparable to published ones; default: the pack's own captions, each once."""
    data: str | None = None
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
    zero_shot: bool = False
    """Of a contrastive run: tell the pack's labels by their names instead of finding captions
    (arXiv 2103.00020, §3.1)."""
    egomcq: Path | None = None
    """Of a contrastive run: a file of EgoMCQ questions, whose clips are among the samples of
    --data (in --split, if given). --on-error mask leaves out questions with a clip that cannot be
    read."""
    json: str | None = None
    """Write metrics and predictions to this file as well; - for standard output."""


def main(args: Sequence[str]) -> int:
    command = parse(EvalCommand, args, "eval")
    views = parse_views(command.views) if command.views is not None else None
    _check(command)
    loaded = load_run(
        command.run, device=command.device, checkpoint="best" if command.best else "last"
    )
    shared: dict[str, Any] = {
        "split": command.split, "batch_size": command.batch_size, "workers": command.workers,
        "mask_errors": command.on_error == "mask",
    }  # fmt: skip
    with counting("evaluating", "clips") as step:
        if command.zero_shot:
            report = zero_shot(
                loaded, data=command.data, views=views or (1, 1), on_progress=step, **shared
            )
        elif command.egomcq is not None:
            assert command.data is not None
            report = egomcq(
                loaded, command.egomcq, command.data, views=views or (1, 1), on_progress=step,
                **shared,
            )  # fmt: skip
        else:
            report = evaluate(
                loaded, data=command.data, views=views, average=command.average,
                sentences=command.sentences, on_progress=step, **shared,
            )  # fmt: skip
    write_json(command.json, report)
    if command.json != "-":
        for note in loaded.notes:
            out.print(note)
        if command.egomcq is not None:
            _show_egomcq(report)
        else:
            show(report)
    return 0


def _check(command: EvalCommand) -> None:
    """Refuse flags that have nothing to do with each other.

    Raises:
        ConfigError: naming them.
    """
    if command.zero_shot and command.egomcq is not None:
        raise ConfigError("--zero-shot and --egomcq are two evaluations: ask for one")
    other = "--zero-shot" if command.zero_shot else "--egomcq"
    if command.zero_shot or command.egomcq is not None:
        if command.average != "probabilities":
            raise ConfigError(
                f"--average {command.average} has no effect with {other}, which averages the "
                "vectors of a clip's views"
            )
        if command.sentences is not None:
            raise ConfigError(f"--sentences has no effect with {other}: leave one of them out")
    if command.egomcq is not None and command.data is None:
        raise ConfigError("--egomcq needs the pack of its clips: --data PACK")


def _show_egomcq(report: dict[str, Any]) -> None:
    out.print(f"{report['run']} at step {report['step']} on {report['data']}, EgoMCQ")
    kinds = [(k, report[f"{k}_video"], report[f"{k}_questions"]) for k in ("inter", "intra")]
    rows = [[f"{k}-video", "–" if v is None else f"{v:.3f}", n] for k, v, n in kinds]
    table(["clips", "accuracy", "questions"], rows)
    if report["left_out"]:
        out.print(
            f"{report['left_out']} questions are left out: {report['skipped']} clips could not be "
            "read"
        )


def show(report: dict[str, Any]) -> None:
    """Print the metrics as tables."""
    out.print(
        f"{report['run']} at step {report['step']} on {report['data']} ({report['split']}), "
        f"{report['views']} views: {report['samples']} samples, {report['skipped']} skipped"
    )
    match report["task"]:
        case "classification" if "map_macro" in report:
            _show_several_labels(report)
        case "classification":
            _show_classes(report)
        case "contrastive":
            _show_retrieval(report)
        case "masked":
            table(["reconstruction loss"], [[float(report["loss"])]])


def _show_classes(report: dict[str, Any]) -> None:
    pairs = "verb_top1" in report
    if pairs:
        rows = [[part, report[f"{part}_top1"], report[f"{part}_top5"]] for part in ("verb", "noun")]
        table(["", "top-1", "top-5"], [*rows, ["action", report["top1"], report["top5"]]])
    names = {"top1": "top-1", "top5": "top-5", "macro_f1": "macro F1", "weighted_f1": "weighted F1",
             "ece": "ECE"}  # fmt: skip
    kept = [name for name in names if not (pairs and name.startswith("top"))]
    about = "of actions" if pairs else ""
    table([names[name] for name in kept], [[float(report[name]) for name in kept]], title=about)
    _show_confusion(report, "true verb" if pairs else "true class")


def _show_confusion(report: dict[str, Any], true: str) -> None:
    """A row a class; up to 20 have a column too, under the number of their row."""
    rows = []
    for number, name in enumerate(report["classes"], 1):
        counts = report["confusion"][number - 1]
        rows.append([number, name, _number(report["per_class"][name]), sum(counts), *counts])
    columns = ["", true, "accuracy", "samples"]
    if len(rows) <= 20:
        table([*columns, *(str(row[0]) for row in rows)], rows, title="predicted class: 1, 2, …")
    else:
        table(columns[1:], [row[1:4] for row in rows])


def _show_several_labels(report: dict[str, Any]) -> None:
    names = {"top1": "top-1", "map_macro": "mAP over classes", "map_micro": "mAP over all pairs"}
    table(list(names.values()), [[float(report[name]) for name in names]])
    pairs = zip(report["classes"], report["class_ap"], strict=True)
    table(["class", "average precision"], [[name, _number(value)] for name, value in pairs])
    if report["classes_without_positives"]:
        out.print(
            f"{report['classes_without_positives']} classes do not occur here and count in no mean"
        )


def _show_retrieval(report: dict[str, Any]) -> None:
    out.print(
        f"{report['captions']} captions as queries and as candidates, {report['cut']} of them cut "
        "to the context"
    )
    if report["repeated"]:
        out.print(
            f"{report['repeated']} captions repeat another's words: only a caption's own clip is "
            "right, so recall cannot reach 1"
        )
    columns = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "median_rank": "median rank",
               "mean_rank": "mean rank"}  # fmt: skip
    rows = [[told, *(report[f"{way}_{name}"] for name in columns)] for way, told in _WAYS.items()]
    table(["", *columns.values()], rows)
    if report.get("mir_left_out"):
        out.print(
            f"EK-100 MIR leaves out {report['mir_left_out']} clips without a verb or a noun; "
            f"{report['mir_clips']} take part"
        )
    if "mir_graded_average_map" in report:
        kinds = {"graded_{}_map": "mAP (graded)", "binary_{}_map": "mAP (binary)",
                 "graded_{}_ndcg": "nDCG"}  # fmt: skip
        ways = [*_WAYS, "average"]
        rows = [
            [told, *(report[f"mir_{key.format(way)}"] for way in ways)]
            for key, told in kinds.items()
        ]
        table(["EK-100 MIR", *_WAYS.values(), "average"], rows)
        out.print(f"MIR over {report['mir_sentences']} sentences: {report['mir_source']}")


_WAYS = {"t2v": "text → video", "v2t": "video → text"}


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
