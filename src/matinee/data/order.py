"""In which order samples are seen: a function of (seed, epoch), nothing else.

# Note [Mixtures]
An epoch of several packs has as many clips as these packs together. With weights, pack i gives the
part w_i of them, rounded to whole numbers that add up; which pack is next is drawn so that each has
exactly its number. Each pack is gone through in a random order of its own; when all of it was seen,
in another one, and so on, from where the last epoch left off: at any time no clip of a pack has
come up two times more often than another. Without weights each pack gives all its clips once an
epoch.

All of it follows from (seed, epoch): the clips that pack i has given before epoch e are e times its
number, so a run can be resumed anywhere at once, and ranks agree without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from matinee.data.random import generator


def epoch_order(count: int, *, seed: int, epoch: int, shuffle: bool) -> NDArray[np.int64]:
    """A permutation of 0 … count - 1, [count]; the identity without `shuffle`."""
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    return generator(seed, epoch, 0, "order").permutation(count).astype(np.int64)


def shares(count: int, weights: Sequence[float]) -> list[int]:
    """`count` cut in proportion to `weights`, by largest remainders; of equal ones the first."""
    parts = [Fraction(weight) for weight in weights]
    exact = [count * part / sum(parts) for part in parts]
    whole = [int(value) for value in exact]
    order = sorted(range(len(exact)), key=lambda i: (whole[i] - exact[i], i))
    for i in order[: count - sum(whole)]:
        whole[i] += 1
    return whole


def mixed_order(
    sizes: Sequence[int], given: Sequence[int], *, seed: int, epoch: int
) -> NDArray[np.int64]:
    """The items of an epoch of several packs, of which pack i has `sizes[i]` and gives `given[i]`.

    Returns:
        int64 [sum(given)]. Items are numbered through all packs, 0 … sum(sizes) - 1; one that comes
        again within an epoch has sum(sizes) added for each time it may have come before.
    """
    total, first = sum(sizes), 0
    packs = np.repeat(np.arange(len(sizes)), given)
    generator(seed, epoch, 0, "mixture").shuffle(packs)
    order = np.empty(len(packs), np.int64)
    for pack, (size, count) in enumerate(zip(sizes, given, strict=True)):
        start = epoch * count
        passes = range(start // size, -(-(start + count) // size))
        runs = [
            generator(seed, number, pack, "pack").permutation(size) + first + again * total
            for again, number in enumerate(passes)
        ]
        skip = start - passes.start * size
        order[packs == pack] = np.concatenate(runs)[skip : skip + count] if count else 0
        first += size
    return order
