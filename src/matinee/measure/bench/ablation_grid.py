"""Running an ablation's grid: a process for each run, an epoch each in turn, finished runs kept.

`runs/CELL-seedN.json` holds a finished run with the settings it was
made with. A run that is there with the same settings is not run again; one with other settings is
refused, so that a table never mixes the two.

# Note [Sittings]
A grid that is gone on with was measured in several sittings, one a call of `run_grid`, maybe days
apart. Cells of a seed took turns only with those of the same sitting: each run keeps the name of
its own, and the page says which ratios cross sittings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from matinee.errors import ConfigError, MatineeError
from matinee.files import write_whole
from matinee.measure import machine
from matinee.measure.bench.ablation_levers import Cell, Lever, configure, differences
from matinee.measure.bench.ablation_run import EPOCH, OPEN, TEST
from matinee.training.config import TrainConfig
from matinee.workers import WorkerPool


@dataclass(frozen=True)
class Plan:
    """What is measured: `config` with the `levers` in every cell, for each seed.

    `turns`: the cells of a seed train side by side, an epoch each in turn (see Note [Interleaving]
    in measure/arms.py); else one run after the other.
    """

    config: TrainConfig
    levers: tuple[Lever, ...]
    cells: tuple[Cell, ...]
    epochs: int
    seeds: tuple[int, ...]
    turns: bool

    @property
    def measured(self) -> tuple[Cell, ...]:
        """The cells that are run."""
        return tuple(cell for cell in self.cells if not cell.cannot)

    @property
    def units(self) -> int:
        """Of progress: each epoch and each test is one."""
        return len(self.measured) * len(self.seeds) * (self.epochs + 1)


@dataclass(frozen=True)
class Run:
    """A finished run. Seconds and loss of each epoch; peak memory of training, and what was held
    before its first step, in bytes; accuracy and F1 on the held-out split, from 0 to 1. `sitting`:
    when that began, UTC. See Note [Sittings].
    """

    cell: str
    seed: int
    sitting: str
    device: str
    precision: str
    clips: int
    steps: int
    seconds: tuple[float, ...]
    loss: tuple[float, ...]
    peak_bytes: int
    held_bytes: int
    top1: float
    macro_f1: float
    samples: int


def run_grid(plan: Plan, folder: Path, tell: Callable[[int, str], None]) -> tuple[Run, ...]:
    """All runs of a plan, by seed and then by cell.

    Args:
        folder: where finished runs are kept, and found.
        tell: told how many units of progress were made, and on what.

    Raises:
        ConfigError: settings that contradict each other or the data; a run with other settings is
            in the folder; a damaged file.
        MatineeError: a run failed; those that were finished are kept.
    """
    folder = folder / "runs"
    kept: dict[tuple[str, int], Run | None] = {}
    for seed in plan.seeds:  # all are looked at before anything is run
        for cell in plan.measured:
            kept[cell.name, seed] = _kept(plan, cell, seed, folder)
    folder.mkdir(parents=True, exist_ok=True)
    sitting = datetime.now(UTC).isoformat()
    for number, seed in enumerate(plan.seeds):
        missing = [cell for cell in plan.measured if kept[cell.name, seed] is None]
        done = len(plan.measured) - len(missing)
        if done:
            tell(done * (plan.epochs + 1), "kept from before")
        first = number % max(1, len(missing))
        order = missing[first:] + missing[:first]
        for group in [order] if plan.turns else [[cell] for cell in order]:
            for run in _run_side_by_side(plan, group, seed, sitting, tell):
                kept[run.cell, seed] = run
                _keep(plan, run, folder)
    wanted = [kept[cell.name, seed] for seed in plan.seeds for cell in plan.measured]
    return tuple(run for run in wanted if run is not None)


def _run_side_by_side(
    plan: Plan, cells: Sequence[Cell], seed: int, sitting: str, tell: Callable[[int, str], None]
) -> list[Run]:
    """An epoch of each in turn, in an order that rotates."""
    with ExitStack() as stack:
        workers = [stack.enter_context(_Worker(plan, cell, seed)) for cell in cells]
        facts = [worker.ask(OPEN) for worker in workers]
        epochs: list[list[dict[str, Any]]] = [[] for _ in cells]
        for epoch in range(plan.epochs):
            for turn in range(len(cells)):
                at = (turn + epoch) % len(cells)
                epochs[at].append(workers[at].ask(EPOCH))
                tell(1, f"{cells[at].name}, seed {seed}, epoch {epoch + 1} of {plan.epochs}")
        runs = []
        for cell, worker, fact, rows in zip(cells, workers, facts, epochs, strict=True):
            tested = worker.ask(TEST)
            worker.close()
            tell(1, f"{cell.name}, seed {seed}, tested")
            runs.append(
                Run(
                    cell=cell.name,
                    seed=seed,
                    sitting=sitting,
                    device=fact["device"],
                    precision=fact["precision"],
                    clips=rows[0]["clips"],
                    steps=rows[0]["steps"],
                    seconds=tuple(row["seconds"] for row in rows),
                    loss=tuple(row["loss"] for row in rows),
                    **tested,
                )
            )
        return runs


class _Worker:
    """The process of one run."""

    def __init__(self, plan: Plan, cell: Cell, seed: int) -> None:
        config = configure(plan.config, plan.levers, cell, epochs=plan.epochs, seed=seed)
        self._what = f"{cell.name}, seed {seed}"
        job = "matinee.measure.bench.ablation_run:Job"
        self._pool = WorkerPool(1, job, (config.to_json(),))

    def ask(self, order: str) -> dict[str, Any]:
        """What the process answers to an order.

        Raises:
            MatineeError: it failed, or died.
        """
        self._pool.submit(0, order)
        while True:
            for result in self._pool.results():
                if result.died:
                    raise MatineeError(f"{self._what}: {result.died}")
                if isinstance(result.error, ConfigError):
                    raise result.error
                if isinstance(result.error, MatineeError):
                    raise MatineeError(f"{self._what}: {result.error}")
                if result.error is not None:
                    raise result.error
                answer: dict[str, Any] = result.value
                return answer

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def settings(plan: Plan, cell: Cell, seed: int) -> dict[str, Any]:
    """All that a run's figures depend on: its config, in which order it ran, and the machine."""
    config = configure(plan.config, plan.levers, cell, epochs=plan.epochs, seed=seed).to_dict()
    del config["run"]["out"]
    here = machine.describe("torch", "timm")
    del here["memory_gib"]  # of a virtual machine, it wavers
    return {"config": config, "turns": plan.turns, "machine": here}


def _file(folder: Path, cell: str, seed: int) -> Path:
    return folder / f"{cell}-seed{seed}.json"


def _keep(plan: Plan, run: Run, folder: Path) -> None:
    cell = next(cell for cell in plan.cells if cell.name == run.cell)
    held = {"settings": settings(plan, cell, run.seed), "run": asdict(run)}
    text = json.dumps(held, indent=1, allow_nan=False) + "\n"
    write_whole(_file(folder, run.cell, run.seed), text.encode())


def _kept(plan: Plan, cell: Cell, seed: int, folder: Path) -> Run | None:
    """A run that was finished before.

    Raises:
        ConfigError: it had other settings, or its file is damaged.
    """
    file = _file(folder, cell.name, seed)
    if not file.exists():
        return None
    try:
        held = json.loads(file.read_text())
        before, row = held["settings"], held["run"]
        run = Run(**{**row, "seconds": tuple(row["seconds"]), "loss": tuple(row["loss"])})
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is damaged ({error!r}): delete it to measure it anew") from None
    now = json.loads(json.dumps(settings(plan, cell, seed)))
    told = differences(before, now)
    if told:
        more = f" and {len(told) - 2} more" if len(told) > 2 else ""
        raise ConfigError(
            f"{file} was measured with other settings ({'; '.join(told[:2])}{more}): take another "
            "--out, or delete it"
        )
    return run
