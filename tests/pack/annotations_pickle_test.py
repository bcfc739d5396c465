"""Pickles read as data: what Python wrote comes back, and nothing in a file is ever run."""

from __future__ import annotations

import builtins
import os
import pickle
import random
import subprocess
import tracemalloc
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from matinee.errors import AnnotationError
from matinee.pack.annotations.pickle_names import Array, Refused
from matinee.pack.annotations.plain_pickle import loads, read_plain_pickle

PLAIN = {
    "list": [1, 2.5, None, True, False, -70000, 2**70, -(2**40), "ünï\n'\"", b"xy\xff" * 100],
    "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
    "dict": {"a": {1: [2]}, 3.5: "", None: b""},
    "sets": [{1, 2}, frozenset("ab")],
    "long": "x" * 70000,
    "again": [["shared"]] * 3,
}
ARRAYS = {
    "float, Fortran order": np.arange(6.0).reshape(2, 3).T,
    "big-endian": np.array([1, 2], ">i4"),
    "text": np.array(["ab", "c"]),
    "bool": np.array([True, False]),
    "none": np.zeros((0, 3), np.float32),
    "small": np.array([[7]], np.uint8),
}


def plain(value):
    """With arrays as numpy has them."""
    if isinstance(value, Array):
        return value.value
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    return value


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_comes_back_as_python_wrote_it(protocol):
    """Every protocol; equal in value and type."""
    found = loads(pickle.dumps(PLAIN, protocol))
    assert found == PLAIN
    assert [type(value) for value in found["list"]] == [type(value) for value in PLAIN["list"]]
    assert found["again"][0] is found["again"][2]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("core", ["numpy.core", "numpy._core"])
def test_numpy_arrays_and_numbers_come_back_under_old_and_new_names(protocol, core):
    """numpy 1 and 2 name their modules differently."""
    held = [*ARRAYS.values(), np.float64(3.5), np.int64(-7), np.bool_(True)]
    raw = pickle.dumps(held, protocol)
    if protocol < 4:  # names are lines of text there, without a length before them
        raw = raw.replace(b"numpy._core", core.encode())
    elif core == "numpy.core":
        raw = shorten(raw)
    found = plain(loads(raw))
    for given, got in zip(held, found, strict=True):
        assert np.array_equal(given, got)
        if isinstance(given, np.ndarray):
            assert (given.dtype, given.shape) == (got.dtype, got.shape)
        else:
            assert type(got) in (int, float, bool)


def shorten(raw: bytes) -> bytes:
    """numpy._core.… → numpy.core.… with the lengths mended, frames left out."""
    for name in (b"multiarray", b"numeric"):
        new, old = b"numpy._core." + name, b"numpy.core." + name
        raw = raw.replace(bytes([0x8C, len(new)]) + new, bytes([0x8C, len(old)]) + old)
    assert b"_core" not in raw
    return raw


class Runs:
    """Pickles into a call."""

    def __init__(self, called, *given):
        self.made = (called, given)

    def __reduce__(self):
        return self.made


class Sets:
    """Pickles into an object with a state."""

    def __reduce__(self):
        return Fraction, ("1/2",), {"x": 1}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    ("made", "named"),
    [
        (lambda mark: Runs(os.system, f"touch {mark}"), "posix.system"),
        (lambda mark: Runs(builtins.eval, f"open({str(mark)!r}, 'w')"), "eval"),
        (lambda mark: Runs(builtins.exec, f"open({str(mark)!r}, 'w')"), "exec"),
        (lambda mark: Runs(subprocess.Popen, ["touch", str(mark)]), "Popen"),
        (lambda mark: Runs(getattr, 1, "real"), "getattr"),
        (lambda mark: Runs(__import__, "os"), "__import__"),
        (lambda mark: Runs(np.load, str(mark)), "load"),
        (lambda mark: Runs(Path, str(mark)), "Path"),
        (lambda mark: [1, {"a": (Runs(os.system, f"touch {mark}"),)}], "posix.system"),
        (lambda mark: Sets(), "fractions.Fraction"),
        (lambda mark: OrderedDict(a=1), "OrderedDict"),
        (lambda mark: np.array([os.system, {}], dtype=object), "array of objects"),
        (lambda mark: np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]), "type 'V12'"),
        (lambda mark: np.datetime64("2020-01-01"), "type 'M8'"),
        (lambda mark: pickle.Pickler, "Pickler"),
    ],
)  # fmt: skip
def test_whatever_is_no_plain_data_is_refused_by_name(tmp_path, made, named, protocol):
    """And never run: no file appears."""
    mark, file = tmp_path / "mark", tmp_path / "a.pkl"
    file.write_bytes(pickle.dumps(made(mark), protocol))
    with pytest.raises(AnnotationError, match="is refused") as caught:
        read_plain_pickle(file)
    assert named in str(caught.value) and str(file) in str(caught.value)
    assert not mark.exists()


@pytest.mark.parametrize(
    "raw",
    {
        "a far place in the memo": b"\x80\x02]r\xff\xff\xff\x7f.",
        "a place in the memo beyond the file": b"\x80\x02]r\x40\x42\x0f\x00.",
        "a far place in the memo, as text": b"]p999999999999\n.",
        "a negative place": b"]p-5\n.",
        "bytes that are not there": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
        "text that is not there": b"\x80\x04\x8d" + (1 << 60).to_bytes(8, "little") + b".",
        "a long number": b"\x80\x02\x8b\xff\xff\xff\x7f.",
        "a negative long": b"\x80\x02\x8b\xff\xff\xff\xff.",
        "digits": b"I" + b"9" * 100000 + b"\n.",
        "extension code": b"\x80\x02\x82\x01.",
        "persistent id": b"Pabc\n.",
        "persistent id from the stack": b"\x80\x02K\x01Q.",
        "an instance": b"(ios\nsystem\n.",
        "an object": b"(cos\nsystem\no.",
        "new object": b"\x80\x02cnumpy\nndarray\n)\x81.",
        "new object with names": b"\x80\x04cnumpy\nndarray\n)}\x92.",
        "a call of a value": b"\x80\x02K\x01)R.",
        "a call of ndarray": b"\x80\x02cnumpy\nndarray\nK\xff\x85R.",
        "a state for a list": b"\x80\x02]}b.",
        "a state for a name": b"\x80\x02cnumpy\nndarray\n}b.",
        "attributes for a name": b"\x80\x02cnumpy\nndarray\nN}X\x04\x00\x00\x00nameK\x01s\x86b.",
        "out-of-band buffer": b"\x80\x05\x97.",
        "a newer protocol": b"\x80\x09N.",
        "a list as key": b"}]K\x01s.",
        "a tuple as key": b"})K\x01s.",
        "a list in a set": b"\x80\x04\x8f(]\x90.",
        "half a pair": b"}(K\x01u.",
        "no end": b"\x80\x04]\x94",
        "nothing": b"",
        "an empty stack": b".",
        "a mark left open": b"(K\x01.",
        "two values": b"K\x01K\x02.",
        "append to a number": b"K\x01K\x02a.",
        "an empty place": b"h\x05.",
        "no UTF-8": b"\x8c\x01\xff.",
        "text of a name": b"K\x01K\x02\x93.",
        "unknown instruction": b"\xff.",
    }.items(),
    ids=lambda item: item[0],
)
def test_damaged_and_malicious_instructions_are_errors(raw):
    """In time and memory that the length of the file explains."""
    tracemalloc.start()
    with pytest.raises(Refused):
        loads(raw[1])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


def numpy_array(shape: bytes, kind: str, data: bytes) -> bytes:
    """An array's pickle, protocol 2, with any shape (pushed by `shape`), type and bytes."""
    return (
        b"\x80\x03cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
        b"(K\x01" + shape + b"cnumpy\ndtype\n" + f"X{chr(len(kind))}\0\0\0{kind}".encode()
        + b"\x89\x88\x87R(K\x03X\x01\0\0\0<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89"
        + b"B" + len(data).to_bytes(4, "little") + data + b"tb."
    )  # fmt: skip


def test_an_array_needs_exactly_its_bytes():
    """The unchanged form is read; each lie about shape or type is an error."""
    two = np.arange(2.0).tobytes()
    assert plain(loads(numpy_array(b"K\x02\x85", "f8", two))).tolist() == [0.0, 1.0]
    for shape, kind in [
        (b"K\x03\x85", "f8"), (b"K\x01\x85", "f8"), (b"J\xff\xff\xff\xff\x85", "f8"),
        (b"\x8a\x09" + b"\xff" * 8 + b"\0\x85", "f8"), (b"G" + b"\0" * 8 + b"\x85", "f8"),
        (b"K\x02\x85", "O8"), (b"K\x02\x85", "f4"), (b"K\x02\x85", "b8"), (b"K\x02\x85", "S0"),
        (b"K\x02\x85", "f8,f8"), (b"K\x02\x85", "M8"), (b"]", "f8"),
        (b"(" + b"K\x01" * 40 + b"K\x02t", "f8"),
    ]:  # fmt: skip
        with pytest.raises(Refused):
            loads(numpy_array(shape, kind, two))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_texts_that_are_no_unicode_are_refused(protocol):
    """Half a surrogate pair alone, in a list, in an array; a letter beyond the last."""
    far = np.array([0x110000], "<u4").view("<U1")
    swapped = np.array([0x110000], ">u4").view(">U1")
    for value in ("a\ud800", ["\udfff"], np.array(["ok", "\ud900"]), far, swapped):
        with pytest.raises(Refused):
            loads(pickle.dumps(value, protocol))


@pytest.mark.parametrize("name", ["set", "encode"])
def test_a_pickle_that_copies_itself_again_and_again_is_refused(name):
    """A set, or bytes, of 20,000 things made 20,000 times from 140 kB."""
    if name == "set":
        made, call = b"](" + b"K\x01" * 20000 + b"e\x85q\x00", b"cbuiltins\nset\nh\x00R0"
    else:
        made = b"X\x20\x4e\0\0" + b"x" * 20000 + b"X\x06\0\0\0latin1\x86q\x00"
        call = b"c_codecs\nencode\nh\x00R0"
    raw = b"\x80\x02" + made + b"0" + call * 20000 + b"N."
    with pytest.raises(Refused, match="more than it holds"):
        loads(raw)


def test_deep_nesting_neither_recurses_nor_overflows():
    """A hundred thousand lists, one in another."""
    raw = b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
    found, depth = loads(raw), 0
    while found:
        found, depth = found[0], depth + 1
    assert depth == 99_999


def test_mutated_pickles_give_plain_values_or_an_error():
    """2,000 random changes of real pickles: nothing else is raised, nothing is made or run."""
    rng = random.Random(0)
    rows = [(f"video{n}", float(n), n + 1.5, ["a", "b"]) for n in range(20)]
    bases = [
        pickle.dumps(value, protocol)
        for protocol in range(6)
        for value in (PLAIN | {"long": "x"}, rows, [*ARRAYS.values(), np.float64(1)])
    ] + [pickle.dumps(Runs(os.system, "exit 1"), protocol) for protocol in range(6)]
    read = 0
    for _ in range(2000):
        raw = bytearray(rng.choice(bases))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(raw))
            match rng.randrange(4):
                case 0:
                    raw[at] = rng.randrange(256)
                case 1:
                    raw[at] ^= 1 << rng.randrange(8)
                case 2:
                    del raw[at : at + rng.randint(1, 8)]
                case 3:
                    raw[at:at] = raw[(b := rng.randrange(len(raw))) : b + rng.randint(1, 30)]
            raw = raw or bytearray(b".")
        try:
            found = loads(bytes(raw))
        except Refused:
            continue
        read += 1
        assert_plain(found)
    assert 50 < read < 1950


def assert_plain(value):
    """Of the allowed types all the way down; places seen before are not walked again."""
    seen, left = set(), [value]
    while left:
        item = left.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            left += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple, set, frozenset)):
            left += list(item)
        elif isinstance(item, Array):
            assert item.value is None or item.value.dtype.kind in "biufSU?"
        else:
            assert item is None or type(item) in (str, bytes, int, float, bool) or (
                type(item).__module__ == "matinee.pack.annotations.pickle_names"
            )  # fmt: skip
