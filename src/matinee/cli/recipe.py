"""Commands that take a recipe and any of its fields: `matinee COMMAND RECIPE --section.field …`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tyro

from matinee.cli.common import parse
from matinee.errors import ConfigError
from matinee.recipes import GROUPS, RECIPES, tiny
from matinee.training.config import TrainConfig

T = TypeVar("T")


def parse_recipe(
    kind: Callable[..., T],
    args: Sequence[str],
    command: str,
    *,
    about: str,
    data: Any = tyro.MISSING,
    out: Any = tyro.MISSING,
) -> T | int:
    """The arguments of such a command as a dataclass with fields `config` and `tiny`; the exit
    status where only help was asked for.

    Args:
        data, out: where --data and --out are not given; without a value they must be.

    Raises:
        ConfigError: no such recipe.
    """
    if not args or args[0] in ("-h", "--help"):
        print(_usage(command, about))
        return 0 if args else 2
    start = start_config(args[0], data, out, small="--tiny" in args)
    told = f"{about}\n\nRecipe: {inspect.getdoc(RECIPES[args[0]])}"
    return parse(
        kind, args[1:], f"{command} {args[0]}", default=kind(start), description=told,
        config=(tyro.conf.AvoidSubcommands,),  # the recipe chooses among kinds, flags their fields
    )  # fmt: skip


def start_config(recipe: str, data: Any, out: Any, *, small: bool) -> TrainConfig:
    """A recipe before flags change it.

    Raises:
        ConfigError: no such recipe.
    """
    if recipe not in RECIPES:
        raise ConfigError(f"no recipe {recipe!r}; there are: {', '.join(RECIPES)}")
    config = RECIPES[recipe](data, out)
    return tiny(config) if small else config


def _usage(command: str, about: str) -> str:
    recipes = [make.__name__ for group in GROUPS.values() for make in group]
    return (
        f"usage: matinee {command} RECIPE --data PACK --out FOLDER [--section.field value ...]\n\n"
        f"{about}\n\nmatinee {command} RECIPE --help lists every field.\n\n"
        f"recipes: {', '.join(recipes)}"
    )
