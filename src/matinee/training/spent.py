"""Where the time went since the last log line: on this rank, over ranks, and in the decoders."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, TypedDict

from matinee.data.decode_cost import DecodeCost
from matinee.data.epochs import EpochLoader
from matinee.spans import Spans
from matinee.training.parallel.ranks import Ranks

OWN = "own"
"""What a rank did by itself: all but waiting for others, saving and validating."""
_NOT_OWN = frozenset(("comm", "save", "validate"))


class OverRanks(TypedDict):
    """Seconds over ranks, and which rank has the greatest."""

    least: float
    median: float
    greatest: float
    slowest: int


def take_spent(spans: Spans, loader: EpochLoader, ranks: Ranks) -> dict[str, Any]:
    """What a log line tells, and begin anew; a collective, of one message.

    `spans`: seconds of this rank by name. With several ranks, `ranks`: each span over ranks. Where
    clips are decoded, `loader`: what all decoders of all ranks did, and how many there are.
    """
    mine, cost, decoders = spans.take(), loader.take_costs(), loader.workers
    row: dict[str, Any] = {"spans": mine}
    if ranks.world > 1 and spans.on:
        told = ranks.everyone((mine, cost, decoders))
        row["ranks"] = over_ranks([each for each, _, _ in told])
        cost, decoders = sum((c for _, c, _ in told), DecodeCost()), sum(n for *_, n in told)
    if decoders:
        row["loader"] = {"decoders": decoders, **cost.to_dict()}
    return row


def over_ranks(spans: Sequence[dict[str, float]]) -> dict[str, OverRanks]:
    """Each span over ranks, rank r's in `spans[r]`, and OWN; a span that a rank lacks took it
    nothing.

    A rank that is slow has a greater OWN than others, and they wait for it in their "comm". See
    Note [Waiting for other ranks] for what cannot be told apart.
    """
    whole = [
        {**each, OWN: sum(s for name, s in each.items() if name not in _NOT_OWN)} for each in spans
    ]
    found: dict[str, OverRanks] = {}
    for name in dict.fromkeys(name for each in whole for name in each):
        seconds = [each.get(name, 0.0) for each in whole]
        most = max(seconds)
        found[name] = OverRanks(
            least=min(seconds), median=median(seconds), greatest=most, slowest=seconds.index(most)
        )
    return found
