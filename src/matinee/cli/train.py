"""`matinee train`."""

from __future__ import annotations

import inspect
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from matinee.cli.common import busy, err, out, parse
from matinee.errors import ConfigError, MatineeError
from matinee.measure.report.write import write_report
from matinee.models.config import Shift
from matinee.recipes import GROUPS, RECIPES, tiny
from matinee.tasks.config import ContrastiveConfig, MaskedConfig
from matinee.training.config import TrainConfig
from matinee.training.loop import train
from matinee.training.parallel.environment import RankEnvironment
from matinee.training.parallel.launch import check_gpus, launch
from matinee.training.parallel.slurm import SlurmJob, sbatch_script
from matinee.training.setup import parts_of
from matinee.training.show.terminal import show_on


@dataclass(frozen=True)
class TrainCommand:
    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    tiny: bool = False
    """Start from a version of the recipe that runs in seconds on a CPU, to try data and settings;
    fields can be changed all the same."""
    resume: Literal["never", "always", "auto"] = "never"
    """always (or --resume alone): continue the run in --out, exactly where it stopped; auto:
    continue it if there is one."""
    progress: Literal["auto", "plain", "none"] = "auto"
    """auto: a live view on a terminal, else lines; plain: lines; none: silent."""
    report: bool = True
    """At the end draw report.html in the run's folder, as `matinee report` does."""
    gpus: int | None = None
    """Ranks to start on this machine, each on a GPU of its own (with --run.device cpu: processes on
    the CPU). Default: this process alone, or as torchrun or Slurm say."""
    nodes: int = 1
    """More than one: print a Slurm script for so many machines of --gpus (8) each, and end."""
    max_restarts: int = 0
    """How often ranks are started again, and go on from the last checkpoint, after one is lost."""


def main(args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_usage())
        return 0 if args else 2
    if args[0] not in RECIPES:
        raise ConfigError(f"no recipe {args[0]!r}; there are: {', '.join(RECIPES)}")
    make = RECIPES[args[0]]
    config = make(tyro.MISSING, tyro.MISSING)
    small = "--tiny" in args
    command = parse(
        TrainCommand, _bare_resume(args[1:]), f"train {args[0]}",
        default=TrainCommand(tiny(config) if small else config), description=inspect.getdoc(make),
        config=(tyro.conf.AvoidSubcommands,),  # the recipe chooses among kinds, flags their fields
    )  # fmt: skip
    if command.nodes < 1:
        raise ConfigError(f"--nodes {command.nodes}: at least 1")
    if command.max_restarts < 0:
        raise ConfigError(f"--max-restarts {command.max_restarts}: 0 or more")
    if command.nodes > 1:
        parts_of(command.config, command.nodes * (command.gpus or SlurmJob.gpus))
        job = SlurmJob(nodes=command.nodes, gpus=command.gpus or SlurmJob.gpus)
        print(sbatch_script(args[0], _without(args[1:], "--nodes", "--gpus"), job), end="")
        return 0
    ranks = RankEnvironment.read()
    if command.gpus is not None and ranks.launched_by != "torchrun":
        check_gpus(command.gpus, command.config.run.device)
        parts_of(command.config, command.gpus)
        return launch(list(args), processes=command.gpus, max_restarts=command.max_restarts)
    result = train(
        command.config,
        resume="auto" if command.resume == "auto" else command.resume == "always",
        progress=show_on(Console(stderr=True), args[0], how=command.progress),
    )
    if result.stopped:
        if ranks.rank == 0:
            err.print(
                f"stopped by {result.stopped} after step {result.steps}, saved: the same command "
                "with --resume continues exactly there"
            )
        return 128 + int(getattr(signal, result.stopped))
    if ranks.rank != 0:
        return 0
    scores = f"{_scores(result.val)}; " if result.val is not None else ""
    masked = f", {result.masked} clips masked" if result.masked else ""
    out.print(f"{result.out}: {scores}{result.steps} steps in {result.seconds:.0f} s{masked}")
    if command.report:
        _draw(result.out)
    out.print(f"next: {_next(command.config)}")
    sys.stdout.flush()
    return 0


def _draw(run: Path) -> None:
    """The run's page; what keeps it from being drawn is told, and takes nothing from the run."""
    try:
        with busy("drawing the report"):
            write_report(run / "report.html", [run])
        out.print(f"report: {run / 'report.html'}")
    except MatineeError as error:
        err.print(f"no report: {error}")


def _without(args: Sequence[str], *flags: str) -> list[str]:
    """Arguments without some flags and their values."""
    kept: list[str] = []
    skip = False
    for arg in args:
        if not skip and arg.partition("=")[0] not in flags:
            kept.append(arg)
        skip = arg in flags
    return kept


def _bare_resume(args: Sequence[str]) -> list[str]:
    """`--resume` without a value means always."""
    found: list[str] = []
    for arg, after in zip(args, [*args[1:], "--"], strict=True):
        found.append(arg)
        if arg == "--resume" and after.startswith("--"):
            found.append("always")
    return found


def _usage() -> str:
    """Recipes by what they learn from, with the first line of what they say of themselves."""
    width = max(map(len, RECIPES))
    lines = [
        "usage: matinee train RECIPE --data PACK --out FOLDER [--section.field value ...]",
        "",
        "matinee train RECIPE --help says where its settings are from and lists every field;",
        "--tiny runs any recipe in seconds.",
    ]
    for group, recipes in GROUPS.items():
        lines += ["", f"{group}:"]
        for make in recipes:
            what = (inspect.getdoc(make) or "").splitlines()[0]
            lines.append(f"  {make.__name__:<{width}}  {what}")
    return "\n".join(lines)


_SCORES = {
    "top1": "top-1 {:.3f}",
    "macro_f1": "macro F1 {:.3f}",
    "map_macro": "mAP {:.3f}",
    "verb_top1": "verb top-1 {:.3f}",
    "noun_top1": "noun top-1 {:.3f}",
    "t2v_r1": "R@1 text → video {:.3f}",
    "v2t_r1": "video → text {:.3f}",
    "mir_graded_average_map": "mAP {:.3f}",
    "mir_graded_average_ndcg": "nDCG {:.3f}",
    "loss": "loss {:.4g}",
}


def _scores(metrics: dict[str, Any]) -> str:
    """Of the last validation, those that count for the task."""
    shown = [form.format(metrics[name]) for name, form in _SCORES.items() if name in metrics]
    return f"validation {', '.join(shown)}"


def _next(config: TrainConfig) -> str:
    """The command that makes use of a run."""
    run, data = shlex.quote(config.run.out), shlex.quote(config.data.path)
    match config.task:
        case MaskedConfig():
            return (
                f"matinee train videomae_finetune_kinetics --data {data} --out {run}-finetuned "
                f"--model.pretrained {run}/last.pt"
            )
        case ContrastiveConfig():
            return f'matinee search "what to look for" {data} --run {run}'
    if isinstance(config.model.temporal, Shift) and config.model.temporal.causal:
        return f"matinee predict {run} --live /dev/video0"
    several = " --views 3x1" if config.run.views == "1x1" and config.clip.frames > 1 else ""
    return f"matinee eval {run}{several}"
