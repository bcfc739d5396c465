"""All randomness of the data path, derived from what it is for, never from what ran before."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, epoch: int, sample: int, purpose: str) -> np.random.Generator:
    """A random generator that depends on its four arguments and on nothing else.

    Workers, batch size and resuming therefore cannot change what a sample gets.
    """
    key = int.from_bytes(_digest(seed, epoch, sample, purpose, 16), "little")
    return np.random.Generator(np.random.Philox(key=key))


def integer_seed(seed: int, epoch: int, sample: int, purpose: str) -> int:
    """A 63-bit seed for another library's generator, derived in the same way."""
    return int.from_bytes(_digest(seed, epoch, sample, purpose, 8), "little") >> 1


class Rewound:
    """`generator` for many samples in turn: one object, set anew each time, which costs a tenth.

    What was made before must no longer be used.
    """

    def __init__(self) -> None:
        self._bits = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._bits)

    def at(self, seed: int, epoch: int, sample: int, purpose: str) -> np.random.Generator:
        """What `generator` gives."""
        key = np.frombuffer(_digest(seed, epoch, sample, purpose, 16), "<u8")
        self._bits.state = {
            "bit_generator": "Philox", "state": {"counter": _ZEROS, "key": key},
            "buffer": _ZEROS, "buffer_pos": 4, "has_uint32": 0, "uinteger": 0,
        }  # fmt: skip
        return self._generator


_ZEROS = np.zeros(4, np.uint64)


def _digest(seed: int, epoch: int, sample: int, purpose: str, size: int) -> bytes:
    key = f"{seed}/{epoch}/{sample}/{purpose}".encode()
    return hashlib.blake2b(key, digest_size=size).digest()
