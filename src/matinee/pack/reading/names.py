"""Names by the million: which row a name is, without a Python object for each.

# Note [Names]
A name is found by a 64-bit hash, computed for all names at once in numpy; the upper halves are kept
sorted, with the row of each: 8 bytes a name. A hash that fits is a guess: the name itself is then
compared, and where it is another, the next of the same hash or Arrow's own hash table decides.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_STEP, _WORD, _BLOCK = 0x9E3779B97F4A7C15, 8, 1 << 14
_MASK = (1 << 64) - 1


def hashes(names: pa.Array) -> NDArray[np.uint64]:
    """A hash of each name [N]; there are no nulls."""
    wide = np.int64 if pa.types.is_large_string(names.type) else np.int32
    _, edges, content = names.buffers()
    offsets = np.frombuffer(edges, wide)[names.offset : names.offset + len(names) + 1]
    data = np.frombuffer(content or b"", np.uint8)
    found = np.empty(len(names), np.uint64)
    for first in range(0, len(names), _BLOCK):  # what fits the processor's cache
        part = offsets[first : first + _BLOCK + 1].astype(np.int64)
        some = np.concatenate([data[part[0] : part[-1]], np.zeros(_WORD, np.uint8)])
        found[first : first + _BLOCK] = _hashes(part - part[0], some)
    return found


def _hashes(offsets: NDArray[np.int64], padded: NDArray[np.uint8]) -> NDArray[np.uint64]:
    words = np.ndarray((len(padded) - _WORD + 1,), "<u8", padded, strides=(1,))  # at every byte
    length, start = np.diff(offsets), offsets[:-1]
    found = length.astype(np.uint64)
    rows, done = np.flatnonzero(length), 0
    while len(rows):
        left = np.minimum(length[rows] - done, _WORD).astype(np.uint64)
        beyond = np.uint64(8) * (np.uint64(_WORD) - left)
        word = words[start[rows] + done] << beyond >> beyond
        mixed = (found[rows] ^ word) * np.uint64(_STEP)
        found[rows] = mixed ^ (mixed >> np.uint64(32))
        done += _WORD
        rows = rows[length[rows] > done]
    return found


def hash_of(name: str) -> int:
    """The same of one name."""
    data = name.encode(errors="surrogatepass")
    found = len(data)
    for at in range(0, len(data), _WORD):
        mixed = (found ^ int.from_bytes(data[at : at + _WORD], "little")) * _STEP & _MASK
        found = mixed ^ mixed >> 32
    return found


class Names:
    """Distinct names, and the row of each. See Note [Names].

    Raises:
        ValueError: a name occurs twice; it is the error's argument.
    """

    def __init__(self, names: pa.Array) -> None:
        self.names = names
        hashed = hashes(names)
        order = np.argsort(hashed)
        hashed = hashed[order]
        if np.any(hashed[1:] == hashed[:-1]) and (twice := _twice(names)) is not None:
            raise ValueError(twice)
        self._order = order.astype(np.uint32)
        self._hashes = (hashed >> np.uint64(32)).astype(np.uint32)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, row: int) -> str:
        return str(self.names[row].as_py())

    def row(self, name: str) -> int:
        """The row of a name, -1 for one that is not here."""
        wanted = np.uint32(hash_of(name) >> 32)
        place = int(np.searchsorted(self._hashes, wanted))
        while place < len(self._order) and self._hashes[place] == wanted:
            row = int(self._order[place])
            if self[row] == name:
                return row
            place += 1
        return -1

    def rows(self, names: pa.Array) -> NDArray[np.int64]:
        """The row of each name, -1 for those that are not here."""
        if names.equals(self.names):
            return np.arange(len(names))
        if not len(self):
            return np.full(len(names), -1)
        wanted = (hashes(names) >> np.uint64(32)).astype(np.uint32)
        place = np.minimum(np.searchsorted(self._hashes, wanted), len(self) - 1)
        rows = self._order[place].astype(np.int64)
        same = pc.equal(self.names.take(pa.array(rows)), names).to_numpy(zero_copy_only=False)
        others = np.flatnonzero(~same)  # unknown, or behind another name of the same hash
        if len(others):
            left = names.take(pa.array(others))
            found = pc.index_in(left, value_set=self.names).fill_null(-1)
            rows[others] = found.to_numpy(zero_copy_only=False)
        return rows


def check_distinct(names: pa.Array) -> str | None:
    """A name that occurs twice, or None."""
    hashed = np.sort(hashes(names))
    return _twice(names) if np.any(hashed[1:] == hashed[:-1]) else None


def numbered(names: pa.Array) -> tuple[NDArray[np.int64], Names]:
    """For each of many names the number of it among the distinct ones, and these, in the order of
    their first rows. Equal names usually follow each other.
    """
    new = pc.not_equal(names[1:], names[:-1]).to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.concatenate([np.ones(min(len(names), 1), bool), new]))
    try:
        distinct = Names(names.take(pa.array(starts)) if len(starts) < len(names) else names)
    except ValueError:
        coded = names.dictionary_encode()
        return np.asarray(coded.indices.to_numpy(), dtype=np.int64), Names(coded.dictionary)
    return np.repeat(np.arange(len(starts)), np.diff(starts, append=len(names))), distinct


def _twice(names: pa.Array) -> str | None:
    counts = pc.value_counts(names)
    twice = pc.filter(counts.field("values"), pc.greater(counts.field("counts"), 1))
    return str(twice[0].as_py()) if len(twice) else None
