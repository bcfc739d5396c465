"""`matinee tune`."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from matinee.cli.common import busy, err, out, table
from matinee.cli.recipe import parse_recipe, start_config
from matinee.errors import ConfigError
from matinee.measure.study.page import metric_of, summary, write_study_page
from matinee.training.config import TrainConfig
from matinee.training.search.flags import flags
from matinee.training.search.result import StudyResult, TrialResult
from matinee.training.search.space import read_space
from matinee.training.search.tune import Keep, describe_values, tune
from matinee.training.show.progress import Progress
from matinee.training.show.terminal import show_on

_PAGE_EVERY_S = 30.0
_SHOWN = 10  # trials in the last table


@dataclass(frozen=True)
class TuneCommand:
    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    trials: int = 20
    """How many in all, by all processes and calls."""
    minutes: float | None = None
    """Begin no trial later than this; one that runs is finished."""
    search: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A field and where to look: "optim.lr=1e-4..1e-1:log", "optim.name=sgd,adamw",
    "optim.momentum=0.8..0.98 if optim.name=sgd"; "default" stands for the default space. Give it as
    often as you like."""
    space: Path | None = None
    """A JSON file with a list of such strings."""
    prune: bool = True
    """Stop trials whose best is below the median of the others at the same epoch."""
    keep: Keep = "best"
    """Whose checkpoints stay: those of the best trial, or all."""
    tiny: bool = False
    """Start from a version of the recipe that runs in seconds on a CPU, to try data and settings;
    fields can be changed all the same."""
    progress: Literal["auto", "plain", "none"] = "auto"
    """auto: a live view on a terminal, else lines; plain: lines; none: silent."""


_WHAT = """Search settings for a recipe by many runs (Optuna): learning rate, optimizer, weight
decay, clipping, batch size, label smoothing, or any field by its name. The score is the task's
headline metric at a trial's last validation; trials that fall behind are stopped.

--out becomes a folder with a run a trial, study.json and search.html. The same command goes on with
a search that was stopped, or joins one that runs: on several GPUs start it once for each, with
--run.device cuda:0, cuda:1 … Checkpoints of all trials but the best are deleted as they end
(--keep all). Make trials short with --optim.epochs, --data.train-split or a smaller --clip.size."""


def main(args: Sequence[str]) -> int:
    parsed = parse_recipe(TuneCommand, args, "tune", about=_WHAT)
    if isinstance(parsed, int):
        return parsed
    command, recipe = parsed, args[0]
    config, folder = command.config, Path(parsed.config.run.out)
    start = start_config(recipe, config.data.path, config.run.out, small=command.tiny)
    if command.space is not None and command.search:
        raise ConfigError("--space and --search: give one of them")
    search = read_space(command.space) if command.space is not None else command.search

    def write_command(best: TrainConfig) -> str:
        """A line that trains it anew beside the search."""
        settings = replace(best, run=replace(best.run, out=start.run.out))
        words = ["matinee", "train", recipe, *(["--tiny"] if command.tiny else [])]
        words += ["--data", config.data.path, "--out", f"{config.run.out}-best"]
        return shlex.join([*words, *flags(settings, start)])

    view = _View(folder, command.trials, command.progress)
    found = tune(
        config, search=search, trials=command.trials, minutes=command.minutes,
        prune=command.prune, keep=command.keep, command=write_command, view=view,
        title=f"{recipe} on {Path(config.data.path).name}",
    )  # fmt: skip
    with busy("drawing the page"):
        write_study_page(folder / "search.html", found.study)
    _tell(found.study, folder)
    if found.stopped:
        err.print(f"stopped by {found.stopped}: the same command goes on")
        return 128 + int(getattr(signal, found.stopped))
    if found.waiting:
        err.print(f"{found.waiting} trials are left: the same command goes on")
    if found.running:
        err.print(f"{found.running} trials still run in other processes")
    return 0


def _tell(study: StudyResult, folder: Path) -> None:
    """The last words: a table of the best trials, what mattered, what to do next."""
    best, (write, name) = study.best, metric_of(study.metric)
    out.print(summary(study))
    if best is None:
        return
    ranked = sorted(
        study.complete, key=lambda t: t.value or 0.0, reverse=study.direction == "maximize"
    )
    rows = [
        [trial.number, write(trial.value or 0.0), describe_values(trial.values)]
        for trial in ranked[:_SHOWN]
    ]
    table(["trial", name, "settings"], rows)
    if study.importance:
        weights = sorted(study.importance.items(), key=lambda item: -item[1])[:4]
        out.print("what mattered: " + ", ".join(f"{k} {v:.0%}" for k, v in weights))
    for edge in study.at_edge:
        out.print(f"the best {edge.field} is at the edge of its range: {edge.text}")
    out.print(f"{folder}/search.html shows all; to train the best settings:")
    out.print(study.command)


class _View:
    """Shows each trial as a run, then a line about it; redraws the page from time to time."""

    def __init__(self, folder: Path, trials: int, how: Literal["auto", "plain", "none"]) -> None:
        self._folder, self._trials, self._how = folder, trials, how
        self._console = Console(stderr=True, force_terminal=False if how == "plain" else None)
        self._study: StudyResult | None = None
        self._drawn = time.monotonic()

    def begin(self, study: StudyResult, facts: Sequence[str]) -> None:
        self._study = study
        for fact in facts:
            self._say(f"  {fact}")
        done = sum(trial.state not in ("waiting", "running") for trial in study.trials)
        if done:
            self._say(f"  goes on with a search of {done} trials; best so far {self._best()}")
        for dimension in study.space:
            self._say(f"  {dimension.text}" + (f"   {dimension.why}" if dimension.why else ""))

    def trial(self, number: int, values: dict[str, Any]) -> Progress:
        self._say(f"trial {number}: {describe_values(values)}")
        live = self._how == "auto" and self._console.is_terminal
        name = f"trial {number}"
        if live:
            name += f" ({number + 1} of {self._trials}), best {self._best()}"
        return show_on(self._console, name, self._how)

    def finished(self, study: StudyResult, trial: TrialResult) -> None:
        self._study = study
        write, name = metric_of(study.metric)
        said = f"trial {trial.number}: {trial.state}"
        if trial.value is not None:
            said = f"trial {trial.number}: {name} {write(trial.value)}"
        told = f" ({trial.reason})" if trial.reason else ""
        self._say(f"{said}{told}; best {self._best()}")
        if time.monotonic() - self._drawn > _PAGE_EVERY_S:
            write_study_page(self._folder / "search.html", study)
            self._drawn = time.monotonic()

    def _best(self) -> str:
        best = self._study.best if self._study is not None else None
        if self._study is None or best is None or best.value is None:
            return "none yet"
        write, name = metric_of(self._study.metric)
        return f"{name} {write(best.value)} (trial {best.number})"

    def _say(self, text: str) -> None:
        if self._how != "none":
            self._console.print(text, highlight=False, soft_wrap=True, markup=False, emoji=False)
