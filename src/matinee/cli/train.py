"""`matinee train`."""

from __future__ import annotations

import inspect
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro
from rich.console import Console

from matinee.cli.common import err, out, parse
from matinee.errors import ConfigError
from matinee.recipes import RECIPES
from matinee.training.config import TrainConfig
from matinee.training.loop import train
from matinee.training.progress import Progress, Silent, Terminal


@dataclass(frozen=True)
class TrainCommand:
    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    resume: bool = False
    """Continue the run in --out, exactly where it stopped."""
    progress: Literal["auto", "plain", "none"] = "auto"
    """auto: a live bar on a terminal, else a line an epoch; plain: lines; none: silent."""


def main(args: Sequence[str]) -> int:
    recipes = "\n".join(
        f"  {name:<8} {(inspect.getdoc(make) or '').splitlines()[0]}"
        for name, make in RECIPES.items()
    )
    usage = (
        "usage: matinee train RECIPE --data PACK --out FOLDER [--section.field value ...]\n\n"
        f"recipes (matinee train RECIPE --help lists every field and its default):\n{recipes}"
    )
    if not args or args[0] in ("-h", "--help"):
        print(usage)
        return 0 if args else 2
    if args[0] not in RECIPES:
        raise ConfigError(f"no recipe {args[0]!r}; there are: {', '.join(RECIPES)}")
    make = RECIPES[args[0]]
    default = TrainCommand(make(data=tyro.MISSING, out=tyro.MISSING))
    command = parse(
        TrainCommand, args[1:], f"train {args[0]}", default=default,
        description=inspect.getdoc(make),
    )  # fmt: skip
    progress: Progress = Silent()
    if command.progress != "none":
        plain = command.progress == "plain"
        progress = Terminal(Console(stderr=True, force_terminal=False if plain else None))
    result = train(command.config, resume=command.resume, progress=progress)
    if result.stopped:
        err.print(
            f"stopped by {result.stopped} after step {result.steps}, saved: the same command with "
            "--resume continues exactly there"
        )
        return 128 + int(getattr(signal, result.stopped))
    scores = ""
    if result.val is not None:
        scores = (
            f"validation top-1 {result.val['top1']:.3f}, macro F1 {result.val['macro_f1']:.3f}; "
        )
    masked = f", {result.masked} clips masked" if result.masked else ""
    out.print(f"{result.out}: {scores}{result.steps} steps in {result.seconds:.0f} s{masked}")
    out.print(f"next: matinee eval {result.out} --views 3x1   matinee report {result.out}")
    sys.stdout.flush()
    return 0
