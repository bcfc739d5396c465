"""`matinee slurm`."""

from __future__ import annotations

from collections.abc import Sequence

import tyro

from matinee.cli.common import parse
from matinee.cli.train import TrainCommand
from matinee.errors import ConfigError
from matinee.recipes import RECIPES, tiny
from matinee.training.parallel.slurm import SlurmJob, sbatch_script
from matinee.training.setup import parts_of

_USAGE = """usage: matinee slurm RECIPE [--nodes 4 --gpus 8 --time 24:00:00 ...] -- TRAIN FLAGS

Prints a script for sbatch that runs `matinee train RECIPE` with these flags on several machines,
saves before its time is up, queues again and goes on: matinee slurm ... > run.sh; sbatch run.sh
"""


def main(args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_USAGE)
        if args:
            parse(SlurmJob, ["--help"], "slurm RECIPE")
        return 2
    recipe = args[0]
    if recipe not in RECIPES:
        raise ConfigError(f"no recipe {recipe!r}; there are: {', '.join(RECIPES)}")
    job, flags = _split(recipe, args[1:])
    script = sbatch_script(recipe, flags, job)
    # Flags that are wrong are better found now than when the job's turn has come.
    config = RECIPES[recipe](tyro.MISSING, tyro.MISSING)
    default = TrainCommand(tiny(config) if "--tiny" in flags else config)
    command = parse(TrainCommand, flags, f"train {recipe}", default=default,
                    config=(tyro.conf.AvoidSubcommands,))  # fmt: skip
    parts_of(command.config, job.nodes * job.gpus)
    print(script, end="")
    return 0


def _split(recipe: str, args: Sequence[str]) -> tuple[SlurmJob, list[str]]:
    """What is asked of Slurm, and the flags of `matinee train`: behind "--", or all others."""
    if "--" in args:
        cut = list(args).index("--")
        return parse(SlurmJob, args[:cut], f"slurm {recipe}"), list(args[cut + 1 :])
    job, flags = tyro.cli(
        SlurmJob, args=args, prog=f"matinee slurm {recipe}", return_unknown_args=True
    )
    return job, flags
