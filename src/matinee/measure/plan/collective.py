"""How long an all-reduce takes: α–β models of rings and trees, on one level or two.

# Note [All-reduce]
A message of N bytes over a hop costs α + N β. A ring passes 2 (n - 1) pieces of N / n. A tree (two
binary trees, each for half of the message, so that every link carries it once in each direction)
takes 2 ⌈log2 n⌉ hops, and N β upwards and downwards. On several machines, all may form one ring, in
which the slowest link sets the pace; or each machine first reduces and scatters within (its GPUs
then own a piece each), pieces are all-reduced between machines by a ring or by a tree, and are
gathered within. The shortest is taken, as libraries do.

Sources: Patarasuk and Yuan, doi 10.1016/j.jpdc.2008.09.002 (ring); Sanders et al.,
doi 10.1016/j.parco.2009.09.001 (two trees); NCCL's src/graph/tuning.cc has the same form.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, log2
from typing import Literal

Way = Literal["none", "ring", "tree", "one ring", "ring between", "tree between"]
"""`one ring` and `… between` on several machines; the latter with rings within each."""


@dataclass(frozen=True)
class Link:
    """`alpha` seconds a hop; `rate` bytes a second, in each direction."""

    alpha: float
    rate: float


@dataclass(frozen=True)
class Network:
    """Machines of `per_node` GPUs. `inside`: between GPUs of a machine, for each GPU; `between`:
    of a machine to the others, all of its adapters together.
    """

    per_node: int
    inside: Link
    between: Link


def ring_seconds(ranks: int, size: float, link: Link) -> float:
    """All-reduce of `size` bytes by a ring."""
    if ranks == 1:
        return 0.0
    return 2 * (ranks - 1) * (link.alpha + size / ranks / link.rate)


def tree_seconds(ranks: int, size: float, link: Link) -> float:
    """All-reduce of `size` bytes by two binary trees."""
    if ranks == 1:
        return 0.0
    return 2 * ceil(log2(ranks)) * link.alpha + 2 * size / link.rate


def all_reduce(ranks: int, size: float, network: Network) -> tuple[float, Way]:
    """Seconds of the shortest way, and which it is. See Note [All-reduce].

    The last machine may have fewer GPUs; it waits for the full ones.
    """
    if ranks == 1:
        return 0.0, "none"
    inside, between = network.inside, network.between
    group = min(ranks, network.per_node)
    nodes = ceil(ranks / network.per_node)
    ways: dict[Way, float] = {}
    if nodes == 1:
        ways["ring"] = ring_seconds(ranks, size, inside)
        ways["tree"] = tree_seconds(ranks, size, inside)
    else:
        pace = min(inside.rate, between.rate) if group > 1 else between.rate
        hops = 2 * (nodes * (group - 1) * inside.alpha + (nodes - 1) * between.alpha)
        ways["one ring"] = hops + 2 * (ranks - 1) / ranks * size / pace
        within = ring_seconds(group, size, inside)
        ways["ring between"] = within + ring_seconds(nodes, size, between)
        ways["tree between"] = within + tree_seconds(nodes, size, between)
    best = min(ways, key=ways.__getitem__)
    return ways[best], best


def exposed_seconds(backward: float, buckets: int, bucket_seconds: float) -> float:
    """How long ranks wait for gradients when the backward pass has ended.

    Gradients are ready in `buckets` even pieces, at even times of the backward pass, the last when
    it ends; one travels after the other.
    """
    if buckets < 1 or backward < 0 or bucket_seconds == inf:
        raise ValueError(f"{buckets} buckets in {backward} s, {bucket_seconds} s each")
    last_first = buckets * bucket_seconds - backward * (1 - 1 / buckets)
    return max(bucket_seconds, last_first)
