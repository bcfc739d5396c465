"""`matinee find-lr`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from matinee.cli.common import counting, out, table
from matinee.cli.recipe import parse_recipe
from matinee.files import write_whole
from matinee.measure.study.lr_plot import write_lr_plot
from matinee.training.config import TrainConfig
from matinee.training.search.find_lr import RangeTest, find_lr


@dataclass(frozen=True)
class FindLrCommand:
    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    tiny: bool = False
    """Start from a version of the recipe that runs in seconds on a CPU, to try data and settings;
    fields can be changed all the same."""
    from_: Annotated[float, tyro.conf.arg(name="from")] = 1e-7
    """First value of --optim.lr."""
    to: float = 10.0
    """Last value of --optim.lr; the test ends before it where the loss diverges."""
    steps: int = 100
    """Steps in all; more give a smoother curve."""


_WHAT = """Find the learning rate for a recipe: train a new network for some steps at rising rates
and look where the loss falls (arXiv 1506.01186, §3.3). Writes lr.json, lr.png and lr.svg to --out.

Clipping, weight decay, batch and augmentation are those of the training to come, warm-up and
schedule are not. The weights are forgotten."""


def main(args: Sequence[str]) -> int:
    parsed = parse_recipe(FindLrCommand, args, "find-lr", about=_WHAT)
    if isinstance(parsed, int):
        return parsed
    command, folder = parsed, Path(parsed.config.run.out)
    with counting("range test", "steps") as step:
        found = find_lr(
            command.config, low=command.from_, high=command.to, steps=command.steps,
            on_step=lambda done, steps, rate: step(done, steps, f"lr {rate:.1e}"),
        )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "lr.json", (json.dumps(found.to_dict(), indent=1) + "\n").encode())
    for kind in ("png", "svg"):
        write_lr_plot(folder / f"lr.{kind}", found)
    _tell(found, command.config, folder)
    return 0


def _tell(found: RangeTest, config: TrainConfig, folder: Path) -> None:
    told = found.suggestion
    rows = [
        [what, f"{rate:.2g}", why]
        for what, rate, why in (
            ("steepest descent", told.steepest, "where a step pays most"),
            ("a tenth of the minimum", told.tenth, "a safe distance from the edge"),
            ("minimum", told.minimum, "the edge: the loss stops falling"),
        )
        if rate is not None
    ]
    if rows:
        table(["", "--optim.lr", ""], rows)
    ended = f"diverged at {found.rates[-1]:.2g}" if found.diverged else "did not diverge"
    out.print(
        f"{len(found.rates)} of {found.steps} steps, {ended}; {folder}/lr.json, lr.png, lr.svg"
    )
    if told.lr is None:
        out.print(f"no rate to suggest: {told.reason}")
        return
    grown = (
        f" (× {found.growth:g} for the batch of {found.batch_size})" if found.growth != 1 else ""
    )
    out.print(f"take --optim.lr {told.lr:.2g}{grown}: {told.reason}")
    now = config.optim.lr
    ratio = max(now / told.lr, told.lr / now)
    out.print(f"now it is {now:g}: {'close enough' if ratio < 3 else f'{ratio:.0f} times off'}")
