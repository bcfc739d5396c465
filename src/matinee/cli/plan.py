"""`matinee plan`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from matinee.cli.common import counting, out, parse, write_json
from matinee.cli.recipe import parse_recipe
from matinee.cli.result import keep_result, show_result
from matinee.errors import ConfigError
from matinee.measure.plan.assumptions import Assumptions
from matinee.measure.plan.cards import as_dict, parse_gpus, read_cards
from matinee.measure.plan.data_side import Footage, packed_footage, typical_footage
from matinee.measure.plan.jitter import Jitter, Lognormal
from matinee.measure.plan.measured import read_all_reduce, read_steps
from matinee.measure.plan.show import card_tables, plan_result
from matinee.measure.plan.whole import Wish, plan_run
from matinee.measure.result import Part, Result
from matinee.training.config import TrainConfig


@dataclass(frozen=True)
class PlanCommand:
    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    tiny: bool = False
    """Start from a version of the recipe that runs in seconds on a CPU."""
    gpus: str = "1xA100-80GB"
    """How many of which card: 8xA5000, 1536xV100, A100-80GB. `matinee plan cards` lists them."""
    gpus_per_node: int | None = None
    """GPUs of a machine. Default: all of them up to 8, else 8."""
    cards: Path | None = None
    """A TOML file of cards, added to those that are known or in their place; a card may give only
    what differs."""
    samples: str | None = None
    """Samples of an epoch where there is no pack yet: 240000, 240k or 4M."""
    hours: float | None = None
    """Hours of video where there is no pack yet, for its storage."""
    fps: float | None = None
    """Frames a second of that video. Default: 30."""
    profile: Literal["small", "layered", "intra"] | None = None
    """How that video would be packed. Default: layered."""
    height: int | None = None
    """Short side of its pictures in the pack, in pixels. Default: 288."""
    classes: int | None = None
    """Classes of that data, for classification. Default: 400."""
    cores: float | None = None
    """Cores of each machine that decode. Default: as many as it takes, which is told."""
    disk_gb_s: float | None = None
    """10^9 bytes a second that all machines together read from where the pack lies. Default:
    enough, and what is needed is told."""
    price: float | None = None
    """Of a GPU for an hour, in any currency."""
    jitter: str | None = None
    """How unequal the steps of ranks are: lognormal:0.1, or a JSON file with measured steps
    (`matinee bench scaling`). Default: --assume.jitter and --assume.slowest."""
    all_reduce: Path | None = None
    """JSON of `matinee bench allreduce`: its α and β stand for the links within a machine."""
    assume: Assumptions = field(default_factory=Assumptions)
    json: str | None = None
    """Write the numbers to this file; - for standard output."""

    def __post_init__(self) -> None:
        for name in ("cores", "disk_gb_s", "price"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e12:
                raise ConfigError(f"--{name.replace('_', '-')} {value}: a positive number")
        if self.classes is not None and self.classes < 1:
            raise ConfigError(f"--classes {self.classes}: at least 1")


@dataclass(frozen=True)
class CardsCommand:
    """The cards that plans know, as their makers state them."""

    cards: Path | None = None
    """A TOML file of cards, added to those that are known or in their place."""
    json: str | None = None
    """Write them to this file; - for standard output."""


_UNPACKED = ("samples", "hours", "fps", "profile", "height", "classes")
"""Options that describe data without a pack; a pack tells them itself."""
_WHAT = """What a run needs before it is rented: memory of a GPU and the batch that fits, time of a
step and what binds it, cores for decoding, storage and bandwidth, hours, money, and how it scales
to 10,000 GPUs. Needs no GPU, and no data with --samples (and --hours). With --out FOLDER it writes
a page, plots and JSON.

  matinee plan clip_ego4d --gpus 8xA5000 --samples 4M --hours 3670 --price 0.5
  matinee plan tsm --data my.pack --gpus 4090 --cores 16
  matinee plan cards                                    the cards that are known"""


def main(args: Sequence[str]) -> int:
    if args and args[0] == "cards":
        return _cards(parse(CardsCommand, args[1:], "plan cards"))
    parsed = parse_recipe(PlanCommand, args, "plan", about=_WHAT, data="", out="")
    if isinstance(parsed, int):
        return parsed
    wish = _wish(parsed)
    with counting("plan") as step:
        plan = plan_run(wish, on_step=step)
        result = plan_result(plan)
    if parsed.json != "-":
        out.print(result.title, style="bold")
        out.print(result.lead)
        show_result(result)
    write_json(parsed.json, dict(result.data))
    if parsed.config.run.out:
        keep_result(result, Path(parsed.config.run.out))
    return 0


def _cards(command: CardsCommand) -> int:
    known = read_cards(command.cards)
    if command.json != "-":
        part = Part("cards", "Cards", tables=card_tables(list(known.values())))
        show_result(Result("cards", "Cards", "", [part], {}))
    write_json(command.json, {name: as_dict(card) for name, card in known.items()})
    return 0


def _wish(command: PlanCommand) -> Wish:
    fleet = parse_gpus(command.gpus, read_cards(command.cards), command.gpus_per_node)
    footage, classes = _footage(command)
    links = None if command.all_reduce is None else read_all_reduce(command.all_reduce)
    disk = None if command.disk_gb_s is None else 1e9 * command.disk_gb_s
    return Wish(
        command.config, fleet, footage, command.assume, _jitter(command.jitter), classes,
        command.cores, disk, command.price, links=links,
    )  # fmt: skip


def _footage(command: PlanCommand) -> tuple[Footage, int]:
    config = command.config
    if config.data.path:
        given = [name for name in _UNPACKED if getattr(command, name) is not None]
        if given:
            flags = ", ".join(f"--{name}" for name in given)
            raise ConfigError(f"{flags}: for data without a pack; leave out that, or --data")
        return packed_footage(config)
    if command.samples is None:
        raise ConfigError(
            "give --data PACK, or --samples (and --hours) of data that is not packed yet"
        )
    footage = typical_footage(
        _count(command.samples), command.hours,
        fps=30.0 if command.fps is None else command.fps, profile=command.profile or "layered",
        height=288 if command.height is None else command.height,
        stride=min(16, config.clip.stride),
    )  # fmt: skip
    return footage, command.classes or 400


def _count(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([kKmM]?)", text.strip())
    if match is None or len(text) > 20:
        raise ConfigError(f"--samples {text!r}: a number, such as 240000, 240k or 4M")
    return round(float(match[1]) * {"": 1, "k": 1e3, "m": 1e6}[match[2].lower()])


def _jitter(text: str | None) -> Jitter | None:
    if text is None:
        return None
    match = re.fullmatch(r"lognormal:(\d*\.?\d+)", text)
    if match is None:
        return read_steps(Path(text))
    if not float(match[1]) <= 2:
        raise ConfigError(f"--jitter {text}: a deviation of at most 2")
    return Lognormal(float(match[1]))
