"""A search on disk: which trials there are, who runs them, what they found.

Optuna (arXiv 1907.10902) keeps trials in an SQLite file and proposes the next one; any number of
processes may share it. See Note [Locks, not heartbeats].
"""

from __future__ import annotations

import json
import math
import sqlite3
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from matinee.data.random import integer_seed
from matinee.errors import ConfigError
from matinee.extras import require
from matinee.training.config import TrainConfig
from matinee.training.search.dimensions import Dimension, get_field
from matinee.training.search.locks import Locks
from matinee.training.search.result import State, StudyResult, TrialResult
from matinee.training.search.space import baseline, draw

if TYPE_CHECKING:
    import optuna

_RETRIES = 1  # of a trial whose process died, or that ended with an error that is not its own
_FOR_IMPORTANCE = 10  # complete trials
_GOOD = 0.25  # importance is for being among this part of the trials
_STATES: dict[str, State] = {
    "COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running",
    "WAITING": "waiting",
}  # fmt: skip
# What may differ between processes of one search.
_OWN = {("run", "out"), ("run", "device"), ("data", "workers"), ("data", "mode"), ("data", "path")}


@dataclass(frozen=True)
class Job:
    """A trial that this process runs: its settings by field, in the folder `run`.

    `number` tells trials apart for people; one that was interrupted keeps it when it goes on.
    `baseline`: they are the config's own.
    """

    number: int
    values: dict[str, Any]
    run: Path
    trial: optuna.trial.Trial
    baseline: bool = False


class Study:
    """The search in `folder`, begun or joined.

    Args:
        metric: what trials report; `direction` says which way is better.
        total: how many trials there shall be; with random ones at first, and pruning later.
        prune: stop a trial whose best is below the median of the others at the same epoch.

    Raises:
        ConfigError: the folder holds a search with other settings.
        MissingExtra: Optuna is not installed.
    Source: median stopping rule, Vizier (Golovin et al., KDD 2017), §3.2.2.
    """

    def __init__(
        self,
        folder: Path,
        config: TrainConfig,
        space: Sequence[Dimension],
        *,
        metric: str,
        direction: Literal["maximize", "minimize"],
        total: int,
        prune: bool = True,
        title: str = "",
        command: Callable[[dict[str, Any]], str] = lambda values: "",
    ) -> None:
        self._optuna = require("optuna", "tune")
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self.folder, self.config, self.space, self.total = folder, config, tuple(space), total
        self.metric, self._direction = metric, direction
        self._title, self._command = title, command
        folder.mkdir(parents=True, exist_ok=True)
        self._locks = Locks(folder / "study.lock")
        optim = config.optim
        # Early on, rates still warm up, and a large one has not yet shown what it is good for.
        unjudged = max(math.ceil(optim.warmup_epochs) + 1, math.ceil(optim.epochs / 4))
        pruners = self._optuna.pruners
        pruner = pruners.MedianPruner(4, unjudged) if prune else pruners.NopPruner()
        with self._deciding():
            self._storage = self._open_storage()
            self._study: optuna.Study = self._optuna.create_study(
                storage=self._storage, study_name="matinee", direction=direction,
                pruner=pruner, load_if_exists=True,
            )  # fmt: skip
            self._join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._locks.close()

    def next(self) -> Job | None:
        """The next trial, None when as many as wanted are done or in work."""
        with self._deciding():
            self._retire_dead()
            if self.left() <= 0:
                return None
            fresh = 1 + max((_number(trial) for trial in self._newest()), default=-1)
            # Seeded by the trial's number, so that stopping in between changes nothing.
            self._study.sampler = self._optuna.samplers.TPESampler(
                seed=integer_seed(self.config.run.seed, 0, fresh, "tune") % 2**32,
                n_startup_trials=min(10, max(4, self.total // 3)),
                multivariate=True, group=True, constant_liar=True,
            )  # fmt: skip
            trial = self._study.ask()
            self._locks.hold(trial.number)
            number = trial.user_attrs.get("number", fresh)
            trial.set_user_attr("number", number)
            values = draw(self.space, trial, self.config)
            trial.set_user_attr("values", values)
            own = bool(trial.user_attrs.get("baseline"))
        return Job(number, values, self.folder / f"trial-{number:04d}", trial, own)

    def left(self) -> int:
        """How many trials nobody has begun."""
        begun = [trial for trial in self._newest() if _STATES[trial.state.name] != "waiting"]
        return self.total - len(begun)

    def report(self, job: Job, epoch: int, value: float) -> bool:
        """Note a validation; whether the trial is behind the others."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of one that was noted before its run was interrupted
            job.trial.report(value, epoch)
        return job.trial.should_prune()

    def finish(
        self, job: Job, state: State, *, value: float | None, seconds: float, reason: str
    ) -> None:
        """A trial came to its end."""
        states = self._optuna.trial.TrialState
        with self._deciding():
            before = job.trial.user_attrs.get("seconds", 0.0)
            job.trial.set_user_attr("seconds", before + seconds)
            job.trial.set_user_attr("reason", reason)
            if state == "complete":
                self._study.tell(job.trial, value)
            else:  # Without any validation, it counts as the worst there is.
                self._study.tell(job.trial, state=states.PRUNED)
            self._locks.release(job.trial.number)

    def put_back(self, job: Job, *, seconds: float, reason: str, blame: bool) -> None:
        """A trial was interrupted: somebody goes on with it.

        Args:
            blame: it may be its own fault; then it gets another try only once.
        """
        with self._deciding():
            before = job.trial.user_attrs.get("seconds", 0.0)
            job.trial.set_user_attr("seconds", before + seconds)
            (frozen,) = [t for t in self._trials() if t.number == job.trial.number]
            self._again(frozen, reason, blame=blame)
            self._locks.release(job.trial.number)

    def result(self) -> StudyResult:
        """All that is known so far."""
        found = StudyResult(
            title=self._title,
            metric=self.metric,
            direction=self._direction,
            epochs=self.config.optim.epochs,
            space=self.space,
            trials=tuple(_result(trial) for trial in self._newest()),
            own={d.field: get_field(self.config, d.field) for d in self.space},
        )
        best = found.best
        if best is None:
            return found
        more = {"importance": self._importance(found), "command": self._command(best.values)}
        return StudyResult(**{**vars(found), **more})

    def _open_storage(self) -> Any:
        # Connections are made here since a path may hold what an address may not.
        path, address = self.folder / "study.db", "sqlite:///study.db"
        connect = lambda: sqlite3.connect(path, timeout=120, check_same_thread=False)  # noqa: E731
        return self._optuna.storages.RDBStorage(address, engine_kwargs={"creator": connect})

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        experimental = self._optuna.exceptions.ExperimentalWarning
        with self._locks.deciding(), warnings.catch_warnings():
            warnings.simplefilter("ignore", experimental)  # of what its own guide recommends
            yield

    def _join(self) -> None:
        """Note the settings of a new search, or compare them."""
        settings = json.loads(json.dumps(_settings(self.config)))
        texts = [dimension.text for dimension in self.space]
        held = self._study.user_attrs
        if "settings" not in held:
            start = baseline(self.space, self.config)
            if isinstance(start, dict):
                self._study.enqueue_trial(start, user_attrs={"baseline": True, "number": 0})
            self._study.set_user_attr("space", texts)
            self._study.set_user_attr("settings", settings)
            return
        where = next((s for s in settings if settings[s] != held["settings"][s]), None)
        if where is None and texts != held["space"]:
            where = "space"
        if where is not None:
            raise ConfigError(
                f"{self.folder} holds a search with other settings in section {where!r}: go on "
                "with the same, or start anew with another --out"
            )

    def _trials(self) -> list[optuna.trial.FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _newest(self) -> list[optuna.trial.FrozenTrial]:
        """The newest try of each trial, in order; without what died before it got a number."""
        tries = [trial for trial in self._trials() if "number" in trial.user_attrs]
        newest = {_number(trial): trial for trial in tries}
        return [newest[number] for number in sorted(newest)]

    def _retire_dead(self) -> None:
        """Put back running trials that no process has."""
        for trial in self._trials():
            if trial.state.name == "RUNNING" and self._locks.hold(trial.number):
                self._again(trial, "its process ended", blame=True)
                self._locks.release(trial.number)

    def _again(self, trial: optuna.trial.FrozenTrial, reason: str, *, blame: bool) -> None:
        """End a try, and queue the next one with the same values."""
        failures = trial.user_attrs.get("failures", 0) + blame
        self._storage.set_trial_user_attr(trial._trial_id, "reason", reason)
        self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)
        if failures > _RETRIES or "number" not in trial.user_attrs:
            return
        kept = {k: v for k, v in trial.user_attrs.items() if k != "reason"}
        self._study.add_trial(
            self._optuna.trial.create_trial(
                state=self._optuna.trial.TrialState.WAITING,
                params=trial.params,
                distributions=trial.distributions,
                intermediate_values=trial.intermediate_values,
                user_attrs={**kept, "failures": failures},
                system_attrs=trial.system_attrs,
            )
        )

    def _importance(self, found: StudyResult) -> dict[str, float]:
        """Which dimensions tell good trials from others.

        Source: PED-ANOVA, arXiv 2304.10255; of conditional dimensions, arXiv 2601.20800.
        """
        if len(found.complete) < _FOR_IMPORTANCE or len({t.value for t in found.complete}) < 2:
            return {}
        evaluator = self._optuna.importance.PedAnovaImportanceEvaluator(target_quantile=_GOOD)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says of rare dimensions what the page says of all
            importance: dict[str, float] = self._optuna.importance.get_param_importances(
                self._study, evaluator=evaluator
            )
        return importance


def _number(trial: optuna.trial.FrozenTrial) -> int:
    return int(trial.user_attrs["number"])


def _settings(config: TrainConfig) -> dict[str, Any]:
    return {
        section: {k: v for k, v in fields.items() if (section, k) not in _OWN}
        for section, fields in config.to_dict().items()
    }


def _result(trial: optuna.trial.FrozenTrial) -> TrialResult:
    kept, state = trial.user_attrs, _STATES[trial.state.name]
    number = _number(trial)
    values = {
        field: tuple(value) if isinstance(value, list) else value
        for field, value in kept.get("values", {}).items()
    }
    return TrialResult(
        number, state, values,
        value=trial.value if state == "complete" else None,
        curve=tuple(sorted(trial.intermediate_values.items())),
        reason=kept.get("reason", ""),
        baseline=bool(kept.get("baseline")),
        run=f"trial-{number:04d}",
        seconds=kept.get("seconds", 0.0),
    )  # fmt: skip
