"""GPUs by what their makers state, and how many of them: `8xA5000`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from matinee.errors import ConfigError

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
RATES: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")
_GIVEN = ("memory_gb", "memory_gb_s", "link_gb_s")


@dataclass(frozen=True)
class Card:
    """A GPU. Rates in operations a second, dense (0: no units); memory in bytes; `memory_rate`,
    `link_rate` (to the other cards of its machine, one direction), `host_rate` in bytes a second.
    """

    name: str
    fp32: float
    tf32: float
    fp16: float
    bf16: float
    memory: int
    memory_rate: float
    link: Literal["nvlink", "pcie"]
    link_rate: float
    host_rate: float
    source: str
    reaches: float | None = None
    """Part of the half-precision peak that products reach, where it is known."""
    aliases: tuple[str, ...] = ()

    def rate(self, precision: Precision) -> float:
        """Peak operations a second.

        Raises:
            ConfigError: the card has no units for that format.
        """
        rate = float(getattr(self, precision))
        if rate == 0:
            raise ConfigError(
                f"{self.name} has no {precision} units: choose --speed.precision "
                + ("fp16 or fp32" if self.fp16 else "fp32")
            )
        return rate


@dataclass(frozen=True)
class Fleet:
    """`count` cards of one kind in machines of `per_node`; the last one may have fewer."""

    card: Card
    count: int
    per_node: int

    @property
    def nodes(self) -> int:
        return -(-self.count // self.per_node)

    def __str__(self) -> str:
        machines = f" in {self.nodes} machines of {self.per_node}" if self.nodes > 1 else ""
        return f"{self.count} × {self.card.name}{machines}"


def read_cards(extra: Path | None = None) -> dict[str, Card]:
    """The cards that are known, by name; those of a TOML file `extra` are added, or in their place.

    A card of the file may give only what differs from the known one of the same name or alias,
    whatever the case.

    Raises:
        ConfigError: the file is missing, no TOML, or holds something that describes no card.
    """
    tables = tomllib.loads((files("matinee.measure.plan") / "cards.toml").read_text())
    names = {alias.lower(): name for name, t in tables.items() for alias in t.get("aliases", ())}
    names |= {name.lower(): name for name in tables}
    if extra is not None:
        try:
            own = tomllib.loads(extra.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--cards {extra}: {error}") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"--cards {extra} is no TOML: {error}") from None
        for name, table in own.items():
            if not isinstance(table, dict):
                raise ConfigError(f'--cards {extra}: {name} is no table: write ["{name}"]')
            known = names.get(name.lower(), name)
            tables[known] = tables.get(known, {}) | table
    return {name: _card(name, table, extra) for name, table in tables.items()}


def _card(name: str, table: Mapping[str, Any], extra: Path | None) -> Card:
    where = f"--cards {extra}, {name}" if extra else name
    known = {*RATES, *_GIVEN, "link", "source", "aliases", "reaches", "host_gb_s"}
    unknown = set(table) - known
    if unknown:
        raise ConfigError(f"{where}: unknown {sorted(unknown)[0]!r}; a card has {sorted(known)}")
    missing = {"fp32", *_GIVEN, "link", "source"} - set(table)
    if missing:
        raise ConfigError(f"{where}: {', '.join(sorted(missing))} missing")
    for key in (*RATES, *_GIVEN, "reaches", "host_gb_s"):
        value = table.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e7:
            raise ConfigError(f"{where}: {key} = {value!r}: a number of 0 or more")
        if value == 0 and key in {"fp32", *_GIVEN, *(table.keys() & {"reaches", "host_gb_s"})}:
            raise ConfigError(f"{where}: {key} = 0: must be positive")
    aliases = table.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(a, str) and a for a in aliases):
        raise ConfigError(f'{where}: aliases = {aliases!r}: a list of names, as ["A100"]')
    if table["link"] not in ("nvlink", "pcie"):
        raise ConfigError(f"{where}: link = {table['link']!r}: nvlink or pcie")
    return Card(
        name=name, fp32=1e12 * table["fp32"], tf32=1e12 * table.get("tf32", 0),
        fp16=1e12 * table.get("fp16", 0), bf16=1e12 * table.get("bf16", 0),
        memory=int(table["memory_gb"] * 2**30), memory_rate=1e9 * table["memory_gb_s"],
        link=table["link"], link_rate=1e9 * table["link_gb_s"],
        host_rate=1e9 * table.get("host_gb_s", table["link_gb_s"]), source=str(table["source"]),
        reaches=table.get("reaches"), aliases=tuple(aliases),
    )  # fmt: skip


def find_card(name: str, cards: Mapping[str, Card]) -> Card:
    """A card by its name or one of its aliases, whatever the case.

    Raises:
        ConfigError: none of that name.
    """
    by_name = {alias.lower(): card for card in cards.values() for alias in card.aliases}
    by_name |= {key.lower(): card for key, card in cards.items()}
    found = by_name.get(name.lower())
    if found is None:
        near = get_close_matches(name.lower(), by_name, n=3)
        hint = f"; did you mean {', '.join(by_name[n].name for n in near)}?" if near else "."
        raise ConfigError(
            f"--gpus: no card {name!r}{hint} There are {', '.join(cards)}; add yours with "
            "--cards FILE"
        )
    return found


def parse_gpus(text: str, cards: Mapping[str, Card], per_node: int | None = None) -> Fleet:
    """`8xA5000`, `1536xV100`, or `A100-80GB` for one.

    `per_node`: GPUs of a machine; None: all of them up to 8, else 8.

    Raises:
        ConfigError: anything else, or no such card.
    """
    match = re.fullmatch(r"(?:(\d+) *[x×*])? *([\w.+-]+)", text.strip(), re.IGNORECASE)
    if match is None or (match[1] is not None and not 1 <= int(match[1]) <= 1_000_000):
        raise ConfigError(f"--gpus {text!r}: say how many of which card, as 8xA5000 or A100-80GB")
    count = int(match[1] or 1)
    if per_node is not None and per_node < 1:
        raise ConfigError(f"--gpus-per-node {per_node}: at least 1")
    return Fleet(find_card(match[2], cards), count, min(count, per_node or 8))


def as_dict(card: Card) -> dict[str, Any]:
    """For JSON."""
    return {f.name: getattr(card, f.name) for f in fields(card)} | {"aliases": list(card.aliases)}
