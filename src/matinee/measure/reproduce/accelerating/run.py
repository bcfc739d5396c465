"""The whole reproduction: every grid, what the planner predicts, what was published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matinee.errors import ConfigError
from matinee.measure.bench.ablation import make_plan
from matinee.measure.bench.ablation_grid import Plan, Run, run_grid
from matinee.measure.bench.ablation_tables import (
    Row,
    plots,
    remarks,
    summarise,
    table,
    to_data,
    written,
)
from matinee.measure.reproduce.accelerating.data import NO_DATA, image_set
from matinee.measure.reproduce.accelerating.options import Options
from matinee.measure.reproduce.accelerating.predicted import predicted_part
from matinee.measure.reproduce.accelerating.published import published
from matinee.measure.reproduce.accelerating.sizes import NAMES, Size, about, network_config
from matinee.measure.result import Part, Result, Table

_PICTURES, _RUNS, _PREDICTED = 50, 920, 30  # units of progress, of three phases
_WHOLE = _PICTURES + _RUNS + _PREDICTED
LEVERS = ("GA", "AMP", "PM")
CLASSES = {"cifar10": 10, "cifar100": 100}


def reproduce(options: Options, *, on_step: Callable[[int, int, str], None]) -> Result:
    """Run what is missing of all grids, and tell them beside the published figures.

    Raises:
        ConfigError: no data, data of another kind, or runs with other settings in the folder.
        MatineeError: a run failed; those that were finished are kept.
    """
    size = options.size
    given = {"cifar10": options.cifar10, "cifar100": options.cifar100}
    paths = {name: path for name, path in given.items() if path is not None}
    if not paths:
        raise ConfigError(f"no data was given: --cifar10 PATH, --cifar100 PATH or both. {NO_DATA}")
    folder = options.out / size.name
    plans: dict[tuple[str, str], Plan] = {}
    for number, (data, path) in enumerate(paths.items()):

        def made(done: int, total: int, data: str = data, number: int = number) -> None:
            part = _PICTURES * (number + done / total) / len(paths)
            on_step(int(part), _WHOLE, f"{NAMES[data]}: {done:,} of {total:,} pictures")

        pictures = image_set(path, folder / f"{data}.images", size, CLASSES[data], made)
        for network in dict.fromkeys(options.networks):
            config = network_config(network, size, str(pictures))
            plans[data, network] = make_plan(
                config,
                LEVERS,
                epochs=options.epochs if options.epochs is not None else size.epochs,
                seeds=1 if options.quick else options.seeds,
                turns=True,
            )
    units, done = sum(plan.units for plan in plans.values()), 0
    measured: dict[tuple[str, str], tuple[Run, ...]] = {}
    for key, plan in plans.items():
        name = f"{NAMES[key[1]]}, {NAMES[key[0]]}"

        def tell(count: int, what: str, name: str = name) -> None:
            nonlocal done
            done += count
            on_step(int(_PICTURES + _RUNS * done / units), _WHOLE, f"{name}: {what}")

        measured[key] = run_grid(plan, folder / "-".join(key), tell)

    def predicting(part: float, what: str) -> None:
        on_step(int(_PICTURES + _RUNS + _PREDICTED * part), _WHOLE, what)

    predicted = predicted_part(predicting)
    missing = [name for name in given if name not in paths]
    return _result(size, plans, measured, predicted, missing)


def _result(
    size: Size,
    plans: dict[tuple[str, str], Plan],
    measured: dict[tuple[str, str], tuple[Run, ...]],
    predicted: tuple[Part, list[dict[str, Any]]],
    missing: Sequence[str],
) -> Result:
    rows = {key: summarise(plan, measured[key]) for key, plan in plans.items()}
    text = about(
        size, classes={NAMES[data]: CLASSES[data] for data, _ in plans},
        epochs=next(iter(plans.values())).epochs,
    )  # fmt: skip
    parts = [Part("levers", "What each lever brought", text, [_overview(rows)])]
    for (data, network), plan in plans.items():
        runs = measured[data, network]
        what = f"{NAMES[network]} on {NAMES[data]}"
        parts.append(
            Part(
                f"{data}-{network}",
                what,
                remarks(plan, plan.levers, runs),
                [table(rows[data, network], runs)],
                plots(rows[data, network], what),
            )
        )
    for name in missing:
        text = f"Not run: no data was given (--{name} PATH). {NO_DATA}"
        parts.append(Part(f"{name}-missing", NAMES[name], text))
    part, figures = published(rows)
    parts += [predicted[0], part]
    return Result(
        "accelerating", "Accelerating neural network training: measured again",
        "Gradient accumulation, mixed precision and pinned memory, each alone and together, after "
        "“Accelerating Neural Network Training: A Brief Review” (arXiv 2312.10024). Every cell "
        "differs from the others in its levers alone.",
        parts,
        {
            "size": {**size.to_dict(), "epochs": next(iter(plans.values())).epochs},
            "grids": {
                f"{data}/{network}": to_data(plan, rows[data, network], measured[data, network])
                for (data, network), plan in plans.items()
            },
            "not_run": list(missing),
            "predicted": predicted[1],
            "published": figures,
        },
    )  # fmt: skip


def _overview(rows: dict[tuple[str, str], tuple[Row, ...]]) -> Table:
    """Each lever beside none, a line for each network and cell that was run."""
    cells: list[list[str]] = []
    for (data, network), own in rows.items():
        for row in own[1:]:
            if row.speedup is not None:
                cells.append(
                    [f"{NAMES[network]}, {NAMES[data]}, {row.cell}", *_against(row, own[0])]
                )
    cannot = {row.cell: row.cannot for own in rows.values() for row in own if row.cannot}
    reasons = "; ".join(dict.fromkeys(cannot.values()))
    marked = f" {', '.join(cannot)}: {reasons}." if cannot else ""
    return Table(
        ["network, data, levers", "times as fast", "memory of steps", "accuracy, points"], cells,
        note="Against the same network without levers. Memory of steps: what the peak of training "
        "adds to the memory held before its first step. Points of accuracy within the spread of "
        f"seeds say nothing.{marked}",
    )  # fmt: skip


def _against(row: Row, none: Row) -> list[Any]:
    assert row.speedup and row.step_bytes and none.step_bytes and row.top1 and none.top1
    ratio = row.step_bytes.median / none.step_bytes.median if none.step_bytes.median else None
    return [
        written(row.speedup),
        "–" if ratio is None else f"× {ratio:.2f}",
        f"{100 * (row.top1.median - none.top1.median):+.1f}",
    ]
