"""All randomness of the data path, derived from what it is for, never from what ran before."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, epoch: int, sample: int, purpose: str) -> np.random.Generator:
    """A random generator that depends on its four arguments and on nothing else.

    Workers, batch size and resuming therefore cannot change what a sample gets.
    """
    key = f"{seed}/{epoch}/{sample}/{purpose}".encode()
    digest = hashlib.blake2b(key, digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def integer_seed(seed: int, epoch: int, sample: int, purpose: str) -> int:
    """A 63-bit seed for another library's generator, derived in the same way."""
    key = f"{seed}/{epoch}/{sample}/{purpose}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1
