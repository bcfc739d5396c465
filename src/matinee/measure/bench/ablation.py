"""`matinee bench ablation`: each lever alone, in pairs, and all together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import tyro

from matinee.errors import ConfigError
from matinee.measure.bench.ablation_grid import Plan, run_grid
from matinee.measure.bench.ablation_levers import Place, changed, grid, read_levers
from matinee.measure.bench.ablation_tables import plots, remarks, summarise, table, to_data
from matinee.measure.result import Part, Result
from matinee.pack.images.image_set import ImageSet
from matinee.recipes import RECIPES, tiny
from matinee.tasks.config import ClassificationConfig
from matinee.training.config import TrainConfig
from matinee.training.precision import pick_device


@dataclass(frozen=True)
class Options:
    """What levers bring on your data: none, each alone, each pair, all; time, memory, accuracy.

    Every cell of the grid trains the same recipe for as many epochs from the same seeds, in a
    process of its own, and differs in its levers alone. Finished runs are kept in --out: the same
    command goes on where it was stopped. Levers:

    GA (GA=8): gradient accumulation, 4 (8) micro-batches of a batch that stays as it is. It saves
    memory, not arithmetic.
    AMP (AMP=fp16): mixed precision, bf16, or fp16 with a scaled loss where a GPU has no bf16.
    PM: page-locked batch memory, from which a GPU copies by itself. Without a GPU it cannot show.
    Any --speed field: recompute=1, compile=default, channels-last, fused, side-stream, tf32.

    matinee bench ablation tsm --data my.pack --levers GA AMP recompute=1 --epochs 3
    """

    recipe: tyro.conf.Positional[str]
    """Its name, as matinee train lists them; one that classifies."""
    data: str
    """A pack, a folder or an address, or an image set, with a val or test split."""
    out: Path = Path("bench/ablation")
    """Folder of the page, the JSON, and the finished runs."""
    levers: tuple[str, ...] = ("GA", "AMP", "PM")
    """What is turned on and off."""
    epochs: int | None = None
    """Of each run; the first is not timed where there are more. Default: 3."""
    seeds: int = 2
    """How many runs each cell has."""
    batch_size: int | None = None
    """The global batch of all cells. Default: the recipe's."""
    set: tuple[str, ...] = ()
    """Other settings of all cells, as FIELD=VALUE: optim.lr=0.05 clip.size=64."""
    tiny: bool = False
    """The recipe's small form, to try the command: what it measures means nothing."""
    full: bool = False
    """As many epochs as the recipe has."""
    turns: bool = True
    """Train the cells of a seed side by side, an epoch each in turn, so that a slow minute of the
    machine meets all of them. Takes the memory of all cells at once. Packs of video are always
    trained one run after the other: their decoders would work ahead during others' turns."""

    def __post_init__(self) -> None:
        if self.full and self.epochs is not None:
            raise ConfigError(
                f"--full takes the recipe's epochs, and --epochs {self.epochs} others: choose one"
            )


def measure(options: Options, *, on_step: Callable[[int, int, str], None]) -> Result:
    """Run what is missing of the grid, and tell all of it.

    Raises:
        ConfigError: no such recipe, lever or setting; other settings than what is in the folder.
        MatineeError: a run failed; those that were finished are kept.
    """
    config = _config(options)
    epochs = 3 if options.epochs is None else options.epochs
    plan = make_plan(
        config, options.levers, epochs=config.optim.epochs if options.full else epochs,
        seeds=options.seeds, turns=options.turns,
    )  # fmt: skip
    done = 0

    def tell(units: int, what: str) -> None:
        nonlocal done
        done += units
        on_step(done, plan.units, what)

    runs = run_grid(plan, options.out, tell)
    rows = summarise(plan, runs)
    part = Part(
        "levers", "What each lever brings", text=remarks(plan, plan.levers, runs),
        tables=[table(rows, runs)], plots=plots(rows, options.recipe),
    )  # fmt: skip
    return Result(
        "ablation", f"Ablation of {options.recipe}",
        f"{', '.join(lever.name for lever in plan.levers)} on {options.data}, each alone and "
        "together.",
        [part], to_data(plan, rows, runs),
    )  # fmt: skip


def _config(options: Options) -> TrainConfig:
    if options.recipe not in RECIPES:
        raise ConfigError(f"no recipe {options.recipe!r}; there are: {', '.join(RECIPES)}")
    config = RECIPES[options.recipe](options.data, "unused")
    config = changed(tiny(config) if options.tiny else config, options.set)
    if options.batch_size is not None:
        config = replace(config, optim=replace(config.optim, batch_size=options.batch_size))
    return config


def make_plan(
    config: TrainConfig,
    levers: tuple[str, ...],
    *,
    epochs: int,
    seeds: int,
    turns: bool,
) -> Plan:
    """The grid of a config on this machine.

    Raises:
        ConfigError: no such lever, a task without accuracy, or fewer than one epoch or seed.
    """
    if epochs < 1 or seeds < 1:
        raise ConfigError(f"--epochs {epochs} --seeds {seeds}: at least 1 of each")
    task = config.task
    if not isinstance(task, ClassificationConfig) or task.labels != "single":
        raise ConfigError(
            "an ablation measures accuracy and macro F1: take a recipe that classifies single "
            "labels, such as tsm or resnet50_cifar"
        )
    pictures = isinstance(config.data.open(), ImageSet)
    gpu = pick_device(config.run.device).type == "cuda"
    bf16 = torch.cuda.is_bf16_supported() if gpu else has_bf16(Path("/proc/cpuinfo").read_text())
    place = Place(gpu, bf16, pictures, resident=gpu and pictures and config.data.resident)
    read = read_levers(levers, config, place)
    return Plan(config, read, grid(read), epochs, tuple(range(seeds)), turns and pictures)


def has_bf16(cpuinfo: str) -> bool:
    """Whether a processor multiplies bf16 by itself, from the flags in its /proc/cpuinfo."""
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    flags = {
        flag for name, _, held in lines if name.strip() in ("flags", "Features")  # x86, ARM
        for flag in held.split()
    }  # fmt: skip
    return bool(flags & {"amx_bf16", "avx512_bf16", "bf16"})
