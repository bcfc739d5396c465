"""Pickles read as data: containers, texts, numbers and numpy arrays, and nothing else.

# Note [Plain pickles]
A pickle is a program for a small stack machine, and Python's own reader runs all of it: it imports
and calls whatever the file names, and even with that forbidden it can be made to reserve gigabytes
by a few bytes (a far place in the memo, the length of a bytearray that is not there). So the
machine is built here with only the instructions that build plain data. A call is possible to a
few names, of numpy, of sets and of old byte strings; these are recognised, never imported. Arrays
are made from their bytes after type, shape and length were checked against each other. Reading
takes time and memory in proportion to the file: what calls copy may not exceed its length.

Source: the instructions as `pickletools` documents them, protocols 0 to 5 (PEP 307, 3154, 574).
"""

from __future__ import annotations

import codecs
import struct
from pathlib import Path
from typing import Any

from matinee.errors import AnnotationError
from matinee.pack.annotations.files import unreadable
from matinee.pack.annotations.pickle_names import (
    ALLOWED,
    Refused,
    build,
    call,
    copied,
    named,
    plain_key,
)

_DOUBLE = struct.Struct(">d").unpack_from
_INT4 = struct.Struct("<i").unpack_from
_UINT4 = struct.Struct("<I").unpack_from
_UINT8 = struct.Struct("<Q").unpack_from
_MAX_INT_BYTES = 32


def read_plain_pickle(file: Path) -> Any:
    """The object in a pickle. Arrays are `Array`s; strings of Python 2 are bytes.

    Raises:
        AnnotationError: a damaged pickle, or one that holds anything but plain data; the text names
            the function or class that it wanted.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise unreadable(file, error) from None
    try:
        return loads(data)
    except Refused as error:
        raise AnnotationError(f"{file} {error}") from None


def loads(data: bytes) -> Any:
    """As `read_plain_pickle`, from bytes.

    Raises:
        Refused: in place of an AnnotationError.
    """
    machine = _Machine(data)
    try:
        return machine.run()
    except (IndexError, struct.error, UnicodeDecodeError, ValueError) as error:
        # IndexError: the data or the stack is at its end.
        why = "it ends too early" if isinstance(error, (IndexError, struct.error)) else str(error)
        raise Refused(f"is a damaged pickle: {why[:200]}") from None


class _Machine:
    """The stack machine. `at` is the place of the next instruction."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []  # stacks below the open marks
        self.memo: list[Any] = []
        self.copied = 0

    def run(self) -> Any:
        """Run to the end. The instructions that rows of data consist of are done here, the rest
        by `_rare`: a file of narrations has a hundred million of them.
        """
        data, memo, stack, outer = self.data, self.memo, self.stack, self.outer
        at = 0
        while True:
            op = data[at]
            at += 1
            if op == 0x94:  # MEMOIZE
                memo.append(stack[-1])
            elif op == 0x8C:  # SHORT_BINUNICODE
                end = at + 1 + data[at]
                stack.append(data[at + 1 : end].decode())  # cut short: the next step finds the end
                at = end
            elif op == 0x47:  # BINFLOAT
                stack.append(_DOUBLE(data, at)[0])
                at += 8
            elif op == 0x28:  # MARK
                outer.append(stack)
                stack = []
            elif op == 0x74:  # TUPLE
                items = stack
                stack = outer.pop()
                stack.append(tuple(items))
            elif op == 0x68:  # BINGET
                stack.append(self._recall(data[at]))
                at += 1
            elif op == 0x6A:  # LONG_BINGET
                stack.append(self._recall(_UINT4(data, at)[0]))
                at += 4
            elif op == 0x71:  # BINPUT
                self._keep(data[at], stack[-1], at)
                at += 1
            elif op == 0x72:  # LONG_BINPUT
                self._keep(_UINT4(data, at)[0], stack[-1], at)
                at += 4
            elif op == 0x58:  # BINUNICODE
                end = at + 4 + _UINT4(data, at)[0]
                stack.append(data[at + 4 : end].decode())
                at = end
            elif op == 0x2E:  # STOP
                if outer or len(stack) != 1:
                    raise ValueError("its end leaves something over")
                return stack[0]
            else:
                self.at, self.stack = at, stack
                self._rare(op)
                at, stack = self.at, self.stack

    def _rare(self, op: int) -> None:
        data, at, stack = self.data, self.at, self.stack
        match op:
            case 0x80:  # PROTO
                if self._byte() > 5:
                    raise ValueError(f"protocol {data[at]} is not known")
            case 0x95:  # FRAME: only a hint for reading ahead
                self._take(8)
            case 0x4E:  # NONE
                stack.append(None)
            case 0x88 | 0x89:  # NEWTRUE, NEWFALSE
                stack.append(op == 0x88)
            case 0x4B:  # BININT1
                stack.append(self._byte())
            case 0x4D:  # BININT2
                stack.append(int.from_bytes(self._take(2), "little"))
            case 0x4A:  # BININT
                stack.append(_INT4(self._take(4))[0])
            case 0x8A:  # LONG1
                stack.append(self._integer(self._byte()))
            case 0x8B:  # LONG4
                stack.append(self._integer(_UINT4(self._take(4))[0]))
            case 0x49 | 0x4C:  # INT, LONG
                line = self._line()
                if op == 0x49 and line in (b"00", b"01"):
                    stack.append(line == b"01")
                else:
                    stack.append(_parse_int(line))
            case 0x46:  # FLOAT
                stack.append(float(self._line()[:400]))
            case 0x8D:  # BINUNICODE8
                stack.append(self._take(_UINT8(self._take(8))[0]).decode())
            case 0x56:  # UNICODE
                text = self._line().decode("raw-unicode-escape")
                text.encode()  # a ValueError for half a surrogate pair
                stack.append(text)
            case 0x43 | 0x55:  # SHORT_BINBYTES, SHORT_BINSTRING
                stack.append(self._take(self._byte()))
            case 0x42 | 0x54:  # BINBYTES, BINSTRING
                stack.append(self._take(_UINT4(self._take(4))[0]))
            case 0x8E | 0x96:  # BINBYTES8, BYTEARRAY8
                stack.append(self._take(_UINT8(self._take(8))[0]))
            case 0x53:  # STRING
                line = self._line()
                if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
                    raise ValueError("a string without quotes")
                stack.append(codecs.escape_decode(line[1:-1])[0])
            case 0x30:  # POP
                if stack:
                    stack.pop()
                else:
                    self._items()
            case 0x31:  # POP_MARK
                self._items()
            case 0x32:  # DUP
                stack.append(stack[-1])
            case 0x29:  # EMPTY_TUPLE
                stack.append(())
            case 0x85 | 0x86 | 0x87:  # TUPLE1, TUPLE2, TUPLE3
                count = op - 0x84
                if len(stack) < count:
                    raise IndexError
                stack[-count:] = [tuple(stack[-count:])]
            case 0x5D:  # EMPTY_LIST
                stack.append([])
            case 0x6C:  # LIST
                items = self._items()
                self.stack.append(items)
            case 0x61:  # APPEND
                item = stack.pop()
                self._top(list).append(item)
            case 0x65:  # APPENDS
                items = self._items()
                self._top(list).extend(items)
            case 0x7D:  # EMPTY_DICT
                stack.append({})
            case 0x64:  # DICT
                items = self._items()
                self.stack.append(_fill({}, items))
            case 0x73:  # SETITEM
                value, key = stack.pop(), stack.pop()
                _fill(self._top(dict), [key, value])
            case 0x75:  # SETITEMS
                items = self._items()
                _fill(self._top(dict), items)
            case 0x8F:  # EMPTY_SET
                stack.append(set())
            case 0x90:  # ADDITEMS
                items = [plain_key(item) for item in self._items()]
                self._top(set).update(items)
            case 0x91:  # FROZENSET
                items = self._items()
                self.stack.append(frozenset(plain_key(item) for item in items))
            case 0x70:  # PUT
                self._keep(_parse_int(self._line()), stack[-1], self.at)
            case 0x67:  # GET
                stack.append(self._recall(_parse_int(self._line())))
            case 0x63:  # GLOBAL
                module, name = self._line().decode(), self._line().decode()
                stack.append(named(module, name))
            case 0x93:  # STACK_GLOBAL
                name, module = stack.pop(), stack.pop()
                if not (isinstance(module, str) and isinstance(name, str)):
                    raise ValueError("a name that is no text")
                stack.append(named(module, name))
            case 0x52:  # REDUCE
                given, called = stack.pop(), stack.pop()
                self.copied += copied(given)
                if self.copied > len(data):
                    raise Refused("is refused: it unfolds into more than it holds")
                stack.append(call(called, given))
            case 0x62:  # BUILD
                state = stack.pop()
                build(stack[-1], state)
            case _:
                raise Refused(f"is refused: instruction {op:#04x} makes an object; {ALLOWED}")

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise IndexError
        self.at += count
        return self.data[self.at - count : self.at]

    def _line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise IndexError
        line = self.data[self.at : end]
        self.at = end + 1
        return line

    def _integer(self, count: int) -> int:
        if count > _MAX_INT_BYTES:
            raise ValueError(f"a number of {count} bytes")
        return int.from_bytes(self._take(count), "little", signed=True)

    def _items(self) -> list[Any]:
        """What lies above the last mark, which is taken away."""
        items, self.stack = self.stack, self.outer.pop()
        return items

    def _top(self, kind: type) -> Any:
        top = self.stack[-1]
        if type(top) is not kind:
            raise ValueError(f"an instruction for a {kind.__name__} meets something else")
        return top

    def _keep(self, place: int, value: Any, at: int) -> None:
        memo = self.memo
        if place == len(memo):
            memo.append(value)
            return
        if not 0 <= place <= at:  # each place before it took at least a byte
            raise ValueError(f"place {place} of the memo")
        memo.extend([_NOTHING] * (place + 1 - len(memo)))
        memo[place] = value

    def _recall(self, place: int) -> Any:
        value = self.memo[place] if 0 <= place < len(self.memo) else _NOTHING
        if value is _NOTHING:
            raise ValueError(f"place {place} of the memo is empty")
        return value


_NOTHING = object()


def _parse_int(line: bytes) -> int:
    if len(line) > 80:
        raise ValueError(f"a number of {len(line)} digits")
    return int(line.rstrip(b"L"))


def _fill(target: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise ValueError("a key without a value")
    for key, value in zip(items[::2], items[1::2], strict=True):
        target[plain_key(key)] = value
    return target
