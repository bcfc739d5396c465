"""What a pickle may name: numpy's arrays, sets, old byte strings. See Note [Plain pickles]."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KINDS = re.compile(r"[?]|b1|[iu][1248]|f[248]|[SU][0-9]{1,6}")
_MAX_SIDE = 1 << 40
ALLOWED = "only lists, tuples, dicts, sets, texts, numbers and numpy arrays of those are read"


class Refused(Exception):
    """Why a pickle is not read; becomes an AnnotationError with the file's name."""


class _Name:
    """A function or class that a pickle names; never imported."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class _Type:
    """A numpy dtype in the making: its code, and the byte order that follows later."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "="

    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.code)


class Array:
    """A numpy array in the making; `value` is None until its bytes have come."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: NDArray[Any] | None = None


_NUMPY = {
    f"{core}.{name}": name
    for core in ("numpy.core", "numpy._core")
    for name in ("multiarray._reconstruct", "multiarray.scalar", "numeric._frombuffer")
} | {name: name for name in ("numpy.dtype", "numpy.ndarray", "_codecs.encode")}
_SETS = {
    f"{module}.{name}": name
    for module in ("builtins", "__builtin__")
    for name in ("set", "frozenset", "bytes")
}


def plain_key(item: Any) -> Any:
    """Keys are texts and numbers: the hash of nested tuples can take forever."""
    if type(item) not in (str, bytes, int, float, bool, type(None)):
        raise ValueError("a key or member that is neither text nor number")
    return item


def named(module: str, name: str) -> _Name:
    whole = f"{module}.{name}"
    known = _NUMPY.get(whole) or _SETS.get(whole)
    if known is None:
        raise Refused(f"is refused: it wants {whole[:100]!r}; {ALLOWED}")
    return _Name(known)


def call(called: Any, given: Any) -> Any:
    """What one of the names that are known makes of its arguments."""
    if not isinstance(called, _Name) or type(given) is not tuple:
        raise ValueError("a call of something that is no function")
    match called.name, given:
        case "numpy.dtype", (str() as code, *_):
            if code.startswith("O"):
                raise Refused(f"is refused: it holds an array of objects; {ALLOWED}")
            if not _KINDS.fullmatch(code):
                raise Refused(f"is refused: it holds an array of type {code[:40]!r}; {ALLOWED}")
            return _Type(code)
        case "multiarray._reconstruct", (_Name(name="numpy.ndarray"), *_):
            return Array()
        case "multiarray.scalar", (_Type() as kind, bytes() as raw):
            return _array(kind, raw, (1,), "C")[0].item()
        case "numeric._frombuffer", (bytes() as raw, _Type() as kind, tuple() as shape, str() as o):
            made = Array()
            made.value = _array(kind, raw, shape, o)
            return made
        case (("set" | "frozenset"), (list() as items,)):
            members = map(plain_key, items)
            return set(members) if called.name == "set" else frozenset(members)
        case "bytes", ():
            return b""
        case "_codecs.encode", (str() as text, "latin1" | b"latin1"):
            return text.encode("latin1")
    raise ValueError(f"a call of {called.name} with arguments it does not take")


def copied(given: Any) -> int:
    """How many items or bytes a call may copy out of its arguments."""
    if type(given) is not tuple:
        return 0
    return sum(len(value) for value in given if isinstance(value, (list, str, bytes)))


def build(target: Any, state: Any) -> None:
    """The state of a dtype or an array, which follows after it was made."""
    match target, state:
        case _Type(), (int(), str() | bytes() as order, None, None, None, *_):
            order = order.decode("ascii") if isinstance(order, bytes) else order
            if order not in ("<", ">", "|", "="):
                raise ValueError(f"a byte order {order[:10]!r}")
            target.order = order
        case Array(), (int(), tuple() as shape, _Type() as kind, fortran, bytes() as raw):
            target.value = _array(kind, raw, shape, "F" if fortran else "C")
        case ((_Type() | Array()), _):
            raise Refused(f"is refused: it holds an array of an unusual kind; {ALLOWED}")
        case _:
            raise ValueError("a state for something that has none")


def _array(kind: _Type, raw: bytes, shape: tuple[Any, ...], order: str) -> NDArray[Any]:
    dtype = kind.dtype()
    sides = all(type(n) is int and 0 <= n < _MAX_SIDE for n in shape)
    if len(shape) > 8 or not sides or order not in ("C", "F"):
        raise ValueError("an array of an impossible shape")
    if not dtype.itemsize or math.prod(shape) * dtype.itemsize != len(raw):
        raise ValueError(f"an array of shape {shape} with {len(raw)} bytes")
    flat = np.frombuffer(raw, dtype)
    if dtype.kind == "U":
        letters = np.frombuffer(raw, dtype.str[0] + "u4")
        if np.any((letters >= 0x110000) | ((letters >= 0xD800) & (letters < 0xE000))):
            raise ValueError("a text that is no Unicode")
    return flat.reshape(shape, order="C" if order == "C" else "F")
