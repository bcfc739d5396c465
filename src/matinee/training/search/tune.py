"""Search settings by many short runs: `tune(config, space=…, trials=20)`."""

from __future__ import annotations

import gc
import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from matinee.errors import ConfigError, MatineeError
from matinee.files import write_whole
from matinee.training.config import TrainConfig
from matinee.training.loop import TrainResult, train
from matinee.training.parallel.environment import RankEnvironment
from matinee.training.parallel.ranks import start_ranks
from matinee.training.search.defaults import default_space
from matinee.training.search.dimensions import write_value
from matinee.training.search.result import State, StudyResult, TrialResult
from matinee.training.search.space import baseline, make_space, put
from matinee.training.search.study import Job, Study
from matinee.training.setup import prepare, training_loader
from matinee.training.show.progress import Progress, Silent
from matinee.training.stages import Stage, Timeline

Keep = Literal["best", "all"]


class View(Protocol):
    """Told about a search as it goes."""

    def begin(self, study: StudyResult, facts: Sequence[str]) -> None: ...
    def trial(self, number: int, values: dict[str, Any]) -> Progress: ...
    def finished(self, study: StudyResult, trial: TrialResult) -> None: ...


class Unseen:
    """Shows nothing."""

    def begin(self, study: StudyResult, facts: Sequence[str]) -> None:
        pass

    def trial(self, number: int, values: dict[str, Any]) -> Progress:
        return Silent()

    def finished(self, study: StudyResult, trial: TrialResult) -> None:
        pass


@dataclass(frozen=True)
class TuneResult:
    """How a search ended. `stopped` names the signal that ended it early, `waiting` counts trials
    still to be begun, `running` those in work in other processes.
    """

    study: StudyResult
    stopped: str = ""
    waiting: int = 0
    running: int = 0


class _Pruned(Exception):
    """A trial that the others have left behind."""


class _Reporting:
    """Progress of a trial that reports its validations to the search."""

    def __init__(self, inner: Progress, report: Callable[[int, float], bool]) -> None:
        self._inner, self._report = inner, report
        self._headline, self._epochs = "", 0

    def start(
        self, *, total: int, facts: list[str], headline: str, epochs: int | None = None
    ) -> None:
        self._headline, self._epochs = headline, epochs or 0
        # Facts are those of all trials, and were told before.
        self._inner.start(total=total, facts=[], headline=headline, epochs=epochs)

    def step(self, step: int) -> None:
        self._inner.step(step)

    def log(self, row: dict[str, Any]) -> None:
        self._inner.log(row)

    def saved(self, step: int, seconds: float) -> None:
        self._inner.saved(step, seconds)

    def note(self, text: str) -> None:
        self._inner.note(text)

    def validated(self, row: dict[str, Any]) -> None:
        self._inner.validated(row)
        epoch, value = row["epoch"], float(row[self._headline])
        if not math.isfinite(value):
            raise _Pruned(f"diverged: validation {self._headline} is not finite, epoch {epoch}")
        if self._report(epoch, value) and epoch < self._epochs:  # at the end it would save nothing
            raise _Pruned(f"behind the median of other trials after epoch {epoch}")

    def __enter__(self) -> _Reporting:
        self._inner.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._inner.__exit__(*exc)


def tune(
    config: TrainConfig,
    *,
    search: Sequence[str] = (),
    trials: int = 20,
    minutes: float | None = None,
    prune: bool = True,
    keep: Keep = "best",
    title: str = "",
    command: Callable[[TrainConfig], str] = lambda config: "",
    view: View | None = None,
) -> TuneResult:
    """Run trials of a config with other settings, each a run in a folder of `config.run.out`.

    The score of a trial is the task's headline metric at its last validation. The first trial has
    the config's own settings, if they are in the space. Called again, a search goes on: with the
    trials that were interrupted, then with new ones; several processes may work on one search.

    Args:
        search: dimensions as `optim.lr=1e-4..1e-1:log`; the default space without any.
        trials: how many in all, by all processes.
        minutes: begin no trial later than this.
        prune: end trials early that are worse than the median of the others.
        keep: which trials' checkpoints; those of all others are deleted as they end.
        command: writes a command that trains a config.

    Raises:
        ConfigError: settings that no trial could be run with; the folder holds a search with
            others.
        MissingExtra: Optuna is not installed.
    """
    if trials < 1:
        raise ConfigError(f"--trials {trials}: at least 1")
    if minutes is not None and not minutes > 0:
        raise ConfigError(f"--minutes {minutes:g}: must be positive")
    if RankEnvironment.read().world > 1:
        raise ConfigError(
            "each process of a search runs trials of its own: start the same command several "
            "times, with --run.device cuda:0, cuda:1 and so on, without torchrun or srun"
        )
    begin, folder, view = time.monotonic(), Path(config.run.out), view or Unseen()
    space = make_space(search, config, default_space(config))
    metric, lower, facts = _check(config)
    own = baseline(space, config)
    if isinstance(own, str):
        facts.append(f"no trial has the recipe's own settings: {own}")
    study = Study(
        folder, config, space, metric=metric, total=trials, prune=prune, title=title,
        direction="minimize" if lower else "maximize",
        command=lambda values: command(put(config, values)),
    )  # fmt: skip
    stopped = ""
    with study:
        view.begin(study.result(), facts)
        while minutes is None or time.monotonic() - begin < 60 * minutes:
            job = study.next()
            if job is None:
                break
            stopped = _run(study, job, view)
            if keep == "best":
                _delete_losers(study)
            found = study.result()
            write_study(folder, found)
            (ended,) = [trial for trial in found.trials if trial.number == job.number]
            view.finished(found, ended)
            if stopped:
                break
        found = study.result()
        running = sum(trial.state == "running" for trial in found.trials)
        return TuneResult(found, stopped, max(0, study.left()), running)


def write_study(folder: Path, study: StudyResult) -> None:
    text = json.dumps(study.to_dict(), indent=1, default=list) + "\n"
    write_whole(folder / "study.json", text.encode())


def _check(config: TrainConfig) -> tuple[str, bool, list[str]]:
    """Make all that a trial needs once, so that what every trial would stumble over ends the search
    before it begins; the headline metric, whether less of it is better, and facts to tell.
    """
    optim, clip = config.optim, config.clip
    pack = config.data.open()
    with start_ranks(config.run.device, config.parallel.timeout_s) as ranks:
        setup = prepare(pack, config, ranks)
        if setup.splits.val is None:
            raise ConfigError(
                f"{pack.path} has nothing to validate on, which a search goes by: name a split "
                "with --data.val-split"
            )
        stage = Stage(optim.epochs, clip.frames, clip.size, optim.batch_size)
        with training_loader(setup, stage, optim.accumulate) as loader:
            timeline = Timeline((stage,), loader.num_items)
    facts = [f"{setup.splits.note}; {timeline.items} clips an epoch, {optim.epochs} epochs a trial"]
    return setup.task.headline, setup.task.lower_is_better, facts


def _run(study: Study, job: Job, view: View) -> str:
    """Run one trial to whatever end; the name of the signal that stopped it."""
    begin = time.monotonic()
    progress = _Reporting(view.trial(job.number, job.values), lambda e, v: study.report(job, e, v))
    state: State = "pruned"
    value, reason = None, ""

    def seconds() -> float:
        return time.monotonic() - begin

    try:
        result = _train(study, job, progress)
        if result.stopped:
            study.put_back(
                job, seconds=seconds(), reason=f"stopped by {result.stopped}", blame=False
            )
            return result.stopped
        assert result.val is not None
        state, value = "complete", float(result.val[study.metric])
    except _Pruned as ended:
        reason = str(ended)
    except torch.OutOfMemoryError:
        reason = "out of GPU memory"
    except KeyboardInterrupt:
        study.put_back(job, seconds=seconds(), reason="stopped by SIGINT", blame=False)
        raise
    except ConfigError as error:
        if job.baseline:
            study.put_back(job, seconds=seconds(), reason=str(error), blame=True)
            raise
        reason = str(error)  # of its own values: the others are those of the baseline
    except MatineeError as error:
        if not _diverged(error):
            study.put_back(job, seconds=seconds(), reason=str(error), blame=True)
            raise
        told, _, _ = str(error).partition(", on samples")
        reason = f"diverged: {told.partition(':')[0]}"
    except BaseException as error:
        study.put_back(job, seconds=seconds(), reason=repr(error), blame=True)
        raise
    finally:
        _free_memory(study.config)
    study.finish(job, state, value=value, seconds=seconds(), reason=reason)
    return ""


def _train(study: Study, job: Job, progress: Progress) -> TrainResult:
    config = put(study.config, job.values)
    config = replace(config, run=replace(config.run, out=str(job.run)))
    return train(config, resume="auto", progress=progress)


def _diverged(error: MatineeError) -> bool:
    """Whether a run ended because its loss, gradient or weights were no longer finite."""
    text = str(error)
    return type(error) is MatineeError and ("not finite" in text or "gradients overflow" in text)


def _free_memory(config: TrainConfig) -> None:
    """So that one trial's GPU memory and compiled code are not in the next one's way."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
    if config.speed.compile != "none":
        torch.compiler.reset()


def _delete_losers(study: Study) -> None:
    """Delete checkpoints of trials that ended, but of the best one."""
    found = study.result()
    for trial in found.trials:
        if trial.state in ("complete", "pruned") and trial is not found.best:
            run = study.folder / trial.run
            for link in run.glob("*.pt"):
                link.unlink(missing_ok=True)
            shutil.rmtree(run / "checkpoints", ignore_errors=True)


def describe_values(values: dict[str, Any]) -> str:
    """Settings in a line."""
    return ", ".join(f"{f.rpartition('.')[2]} {write_value(v)}" for f, v in values.items())
