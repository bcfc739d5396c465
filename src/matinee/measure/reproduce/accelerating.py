"""`matinee reproduce accelerating`: accumulation, mixed precision and pinned memory on images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
from matinee.measure.reproduce.accelerating_data import NO_DATA, image_set
from matinee.measure.reproduce.accelerating_published import published
from matinee.measure.reproduce.accelerating_sizes import FULL, QUICK, SMALL, Size, network_config
from matinee.measure.result import Part, Result, Table

_WHOLE, _PICTURES = 1000, 50  # units of progress, and those of making image sets
LEVERS = ("GA", "AMP", "PM")
CLASSES = {"cifar10": 10, "cifar100": 100}
NAMES = {
    "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "resnet50": "ResNet-50", "vit": "ViT",
    "efficientnet": "EfficientNet-B0",
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Gradient accumulation (GA), mixed precision (AMP) and pinned memory (PM), each alone, in
    pairs and together, for ResNet-50, ViT and EfficientNet on CIFAR-10 and CIFAR-100: time, peak
    memory, test accuracy and macro F1 (arXiv 2312.10024).

    By default on a part of the pictures with networks that a CPU trains in half a minute: what the
    levers do to time and memory shows, what networks can learn does not. Give one data set or both;
    what is not given is marked as not run. Finished runs are kept in --out, and the same command
    goes on with those that are missing.

    matinee reproduce accelerating --cifar10 cifar10_png/ --cifar100 cifar100_png/
    """

    cifar10: Path | None = None
    """A folder or archive (.tar, .tar.gz, .tgz) of pictures as train/CLASS/NAME.png and
    test/CLASS/NAME.png, or an image set that matinee pack made of one. The package cifar2png
    writes such folders of both sets; nothing is downloaded here."""
    cifar100: Path | None = None
    """As --cifar10, of the 100 classes."""
    out: Path = Path("reproduced/accelerating")
    """Folder of the page, the JSON, the plots, and the finished runs."""
    networks: tuple[Literal["resnet50", "vit", "efficientnet"], ...] = (
        "resnet50",
        "vit",
        "efficientnet",
    )
    """Which of the three."""
    seeds: int = 2
    """How many runs each cell has (--quick: 1)."""
    epochs: int | None = None
    """Of each run. Default: 3 (--quick: 2, --full: 30, as the paper's code has it)."""
    full: bool = False
    """All pictures, and the networks of the recipes (ResNet-50, ViT-B/4, EfficientNet-B0) at 32²:
    hours on a GPU, weeks on a CPU."""
    quick: bool = False
    """A sixth of the default's pictures and one seed: to try the command."""


def reproduce(options: Options, *, on_step: Callable[[int, int, str], None]) -> Result:
    """Run what is missing of all grids, and tell them beside the published figures.

    Raises:
        ConfigError: no data, data of another kind, or runs with other settings in the folder.
        MatineeError: a run failed; those that were finished are kept.
    """
    size = _size(options)
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
        about = f"{NAMES[key[1]]}, {NAMES[key[0]]}"

        def tell(count: int, what: str, about: str = about) -> None:
            nonlocal done
            done += count
            part = _PICTURES + (_WHOLE - _PICTURES) * done / units
            on_step(int(part), _WHOLE, f"{about}: {what}")

        measured[key] = run_grid(plan, folder / "-".join(key), tell)
    return _result(size, plans, measured, missing=[name for name in given if name not in paths])


def _size(options: Options) -> Size:
    if options.full and options.quick:
        raise ConfigError("--full and --quick contradict each other: choose one")
    if not options.networks:
        raise ConfigError("--networks: at least one of resnet50, vit, efficientnet")
    return FULL if options.full else QUICK if options.quick else SMALL


def _result(
    size: Size,
    plans: dict[tuple[str, str], Plan],
    measured: dict[tuple[str, str], tuple[Run, ...]],
    missing: Sequence[str],
) -> Result:
    rows = {key: summarise(plan, measured[key]) for key, plan in plans.items()}
    parts = [Part("levers", "What each lever brought", size.about, [_overview(rows)])]
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
    parts.append(part)
    return Result(
        "accelerating", "Accelerating neural network training: measured again",
        "Gradient accumulation, mixed precision and pinned memory, each alone and together, after "
        "“Accelerating Neural Network Training: A Brief Review” (arXiv 2312.10024). Every cell "
        "differs from the others in its levers alone.",
        parts,
        {
            "size": size.to_dict(),
            "grids": {
                f"{data}/{network}": to_data(plan, rows[data, network], measured[data, network])
                for (data, network), plan in plans.items()
            },
            "not_run": list(missing),
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
