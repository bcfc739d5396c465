"""`matinee diagnose`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.text import Text

from matinee.cli.common import busy, counting, out, parse, write_json
from matinee.cli.recipe import parse_recipe
from matinee.cli.result import check_folder, keep_result, show_result
from matinee.errors import ConfigError
from matinee.measure import machine
from matinee.measure.diagnose.diagnose import check_rounds, diagnose
from matinee.measure.diagnose.from_run import diagnose_run
from matinee.measure.diagnose.show import COLOURS, result_of
from matinee.measure.diagnose.verdict import STAGES, Diagnosis
from matinee.recipes import RECIPES
from matinee.training.config import TrainConfig
from matinee.training.parallel.environment import RankEnvironment
from matinee.training.parallel.launch import check_gpus, launch
from matinee.training.setup import parts_of

_WIDTH = 76  # of the bar, in characters


@dataclass(frozen=True)
class DiagnoseCommand:
    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    tiny: bool = False
    """Start from a version of the recipe that runs in seconds on a CPU, to try data and settings;
    fields can be changed all the same."""
    rounds: int = 5
    """How often each way of making steps takes its turn; more make the verdict surer."""
    steps: int | None = None
    """Of each turn. Default: as many as take about 1.5 s."""
    try_: Annotated[int, tyro.conf.arg(name="try")] = 0
    """Try so many of the best changes, each in turn with the recipe as it is, and tell what they
    bring beside what was expected."""
    gpus: int | None = None
    """Ranks to start on this machine, as matinee train does; with --run.device cpu on the CPU."""
    json: str | None = None
    """Write everything as JSON to this file, "-" for standard output."""
    trace: str | None = None
    """Write a trace of a few steps to this file, for https://ui.perfetto.dev."""


@dataclass(frozen=True)
class RunCommand:
    """What held a finished (or stopped) run up, from the times in its metrics.jsonl."""

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: Path | None = None
    """Folder for a page, plots and JSON. Default: none is written."""
    json: str | None = None
    """Write everything as JSON to this file, "-" for standard output."""


_WHAT = """Say which stage holds a recipe up on this machine, and what to change: storage, decode,
h2d (host to device), compute, communication, optimizer or stragglers.

Steps are made as in training, on batches that are there already, without other ranks, and the
loader alone; all take turns, so that a busy machine meets all alike. What a stage costs is what a
step would save without it. Nothing is trained, and nothing is written without --out (a page, plots,
JSON), --json or --trace.

matinee diagnose RUN looks at the folder of a run instead, without running anything."""

_USAGE = f"""usage: matinee diagnose RECIPE --data PACK [--section.field value ...]
       matinee diagnose RUN

{_WHAT}

  matinee diagnose tsm --data my.pack                 any field of the recipe can be set
  matinee diagnose tsm --data my.pack --try 2         and try the two best changes
  matinee diagnose tsm --data my.pack --gpus 8        several ranks
  matinee diagnose runs/a --out verdict/              from a run's own times

recipes: {", ".join(RECIPES)}
matinee diagnose RECIPE --help lists every field."""


def main(args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_USAGE)
        return 0 if args else 2
    if args[0] not in RECIPES:
        return _from_run(args)
    parsed = parse_recipe(DiagnoseCommand, args, "diagnose", about=_WHAT, out="")
    if isinstance(parsed, int):
        return parsed
    command = parsed
    check_rounds(command.rounds, command.steps)
    if command.try_ < 0:
        raise ConfigError(f"--try {command.try_}: 0 or more")
    ranks = RankEnvironment.read()
    if command.gpus is not None and ranks.launched_by != "torchrun":
        check_gpus(command.gpus, command.config.run.device)
        parts_of(command.config, command.gpus)
        program = ("-m", "matinee", "diagnose")
        return launch(list(args), processes=command.gpus, program=program)
    if command.config.run.out:
        check_folder(Path(command.config.run.out))
    with _progress(ranks.rank) as step:
        found = diagnose(
            command.config, rounds=command.rounds, steps=command.steps, tries=command.try_,
            what=f"{args[0]} on {command.config.data.path}", trace=command.trace, on_turn=step,
        )  # fmt: skip
    if found is not None:
        _tell(found, command.config.run.out, command.json)
        if command.trace:
            out.print(f"\n{command.trace}: open it at https://ui.perfetto.dev")
    return 0


def _from_run(args: Sequence[str]) -> int:
    if not args[0].startswith("-") and not Path(args[0]).is_dir():
        raise ConfigError(
            f"{args[0]!r} is neither the folder of a run nor a recipe; recipes: "
            f"{', '.join(RECIPES)}"
        )
    command = parse(RunCommand, args, "diagnose")
    with busy(f"reading {command.run}"):
        found = diagnose_run(command.run)
    _tell(found, "" if command.out is None else str(command.out), command.json)
    return 0


@contextmanager
def _progress(rank: int) -> Iterator[Callable[[int, int, str], None]]:
    """Rank 0 tells."""
    if rank != 0:
        yield lambda done, total, note: None
        return
    with counting("diagnosing", "turns") as step:
        yield step


def _tell(found: Diagnosis, folder: str, json: str | None) -> None:
    result = result_of(found)
    if json != "-":
        out.print(f"{result.title}\n", style="bold")
        out.print(result.lead.partition("\n\n")[2] + "\n")
        out.print(bar(found.stages))
        show_result(result)
        if folder:
            keep_result(result, Path(folder))
    content: dict[str, Any] = {"machine": machine.describe("matinee", "torch"), **result.data}
    write_json(json, content)


def bar(stages: dict[str, float], width: int = _WIDTH) -> Text:
    """The step as one bar: a piece for each stage, named where there is room."""
    total = sum(stages.values()) or 1.0
    text, at, drawn = Text(), 0.0, 0
    for stage in STAGES:
        share = stages.get(stage, 0.0) / total
        at += share * width
        wide, drawn = round(at) - drawn, round(at)
        if wide < 2:
            text.append(" " * wide, style=f"on {COLOURS[stage]}")
            continue
        name = f"{stage} {share:.0%}"
        name = name if len(name) <= wide - 2 else stage if len(stage) <= wide - 2 else ""
        text.append(f"[{name:^{wide - 2}}]", style=f"black on {COLOURS[stage]}")
    return text
