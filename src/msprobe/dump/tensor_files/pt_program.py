"""Parses the pickle program of a saved tensor, without running it.

A pickle is a program that may call anything it names. This interpreter knows the opcodes that torch.save writes for a
tensor and a closed list of names. It builds plain descriptions, imports and calls nothing, and refuses everything else
by name.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Callable, Optional

from msprobe.dump.errors import DumpError
from msprobe.dump.tensor_files.pt_file import STORAGES
from msprobe.stats import dtypes

MAX_PROGRAM = 1 << 20
SHORT_PROGRAM = 1 << 10
MAX_RANK = 64
_MARK = object()


@dataclass(frozen=True)
class Storage:
    """Bytes of the archive: the member `data/{key}`. `dtype` is None if the tensor has it."""

    dtype: Optional[str]
    key: str


@dataclass(frozen=True)
class Tensor:
    """A view of a storage. Offset and strides count elements."""

    storage: Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    conjugate: bool = False
    negative: bool = False


@dataclass(frozen=True)
class _Global:
    name: str


_STORAGE_TYPES: dict[str, Optional[str]] = {f"torch {name}": dtype for dtype, name in STORAGES.items()}
_STORAGE_TYPES["torch.storage UntypedStorage"] = None
_DTYPES = {f"torch {name}": name for name in dtypes.BY_NAME}
_ORDERED_DICT = "collections OrderedDict"
_V2 = "torch._utils _rebuild_tensor_v2"
_V3 = "torch._utils _rebuild_tensor_v3"
_PARAMETER = "torch._utils _rebuild_parameter"
_KNOWN = {*_STORAGE_TYPES, *_DTYPES, _ORDERED_DICT, _V2, _V3, _PARAMETER}


def read(program: bytes) -> Tensor:
    """The tensor that a pickle program describes. Raises DumpError if it describes anything else."""
    if len(program) > MAX_PROGRAM:
        raise DumpError("its pickle program is far too long for one tensor")
    return _read_again(program) if len(program) <= SHORT_PROGRAM else _read(program)


def _read(program: bytes) -> Tensor:
    result = _Machine(program).run()
    if not isinstance(result, Tensor):
        raise DumpError(f"it holds a {type(result).__name__.lstrip('_')}, not one tensor")
    return result


_read_again = lru_cache(maxsize=4096)(_read)  # tensors of the same shape and dtype have the same program


class _Machine:
    def __init__(self, program: bytes) -> None:
        self.program = program
        self.position = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        try:
            while True:
                opcode = self.take(1)
                if opcode == b".":
                    return self.stack.pop()
                step = _OPCODES.get(opcode)
                if step is None:
                    raise DumpError(f"its pickle program uses the opcode {opcode!r}, which no tensor needs")
                step(self)
        except (IndexError, KeyError, TypeError, ValueError, struct.error):
            raise DumpError("its pickle program is damaged") from None

    def take(self, count: int) -> bytes:
        start, self.position = self.position, self.position + count
        if count < 0 or self.position > len(self.program):
            raise DumpError("its pickle program ends too early")
        return self.program[start : self.position]

    def number(self, layout: str) -> int:
        return int(struct.unpack(layout, self.take(struct.calcsize(layout)))[0])

    def line(self) -> str:
        end = self.program.index(b"\n", self.position)
        text = self.program[self.position : end].decode("utf-8")
        self.position = end + 1
        return text

    def push_global(self, name: str) -> None:
        if name not in _KNOWN:
            raise DumpError(f"its pickle program names {name.replace(' ', '.')!r}, which no tensor needs")
        self.stack.append(_Global(name))

    def pop_to_mark(self) -> list[Any]:
        values: list[Any] = []
        while True:
            value = self.stack.pop()
            if value is _MARK:
                return values[::-1]
            values.append(value)

    def pop_tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise DumpError("its pickle program is damaged")
        self.stack[len(self.stack) - count :] = [tuple(self.stack[len(self.stack) - count :])]

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        if not isinstance(self.stack[-1], dict) or not isinstance(key, str):
            raise DumpError("its pickle program is damaged")
        self.stack[-1][key] = value

    def set_items(self) -> None:
        values = self.pop_to_mark()
        for key, value in zip(values[::2], values[1::2]):
            self.stack += [key, value]
            self.set_item()

    def reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Global) or not isinstance(arguments, tuple):
            raise DumpError("its pickle program calls something that is not a function")
        self.stack.append(_call(function.name, arguments))

    def load_storage(self) -> None:
        kind, storage, key, _location, _size = self.stack.pop()
        if kind != "storage" or not isinstance(storage, _Global) or storage.name not in _STORAGE_TYPES:
            raise DumpError("its pickle program asks for something that is not a storage")
        if not isinstance(key, str) or not key.isascii() or not key.isdigit():
            raise DumpError("its storage has no plain number")
        self.stack.append(Storage(_STORAGE_TYPES[storage.name], key))


def _call(name: str, arguments: tuple[Any, ...]) -> Any:
    if name == _ORDERED_DICT and arguments == ():
        return {}
    if name == _PARAMETER and isinstance(arguments[0], Tensor):
        return arguments[0]
    if name == _V2 and len(arguments) in (6, 7):
        metadata = arguments[6] if len(arguments) == 7 else {}
        return _tensor(arguments, arguments[0].dtype if isinstance(arguments[0], Storage) else None, metadata)
    if name == _V3 and len(arguments) in (7, 8) and isinstance(arguments[6], _Global):
        metadata = arguments[7] if len(arguments) == 8 else {}
        return _tensor(arguments, _DTYPES.get(arguments[6].name), metadata)
    raise DumpError(f"its pickle program calls {name.replace(' ', '.')!r} with unexpected arguments")


def _tensor(arguments: tuple[Any, ...], dtype: Optional[str], metadata: Any) -> Tensor:
    storage, offset, shape, strides = arguments[:4]
    if not isinstance(storage, Storage) or dtype is None or not isinstance(metadata, dict):
        raise DumpError("its tensor has no storage or no dtype")
    if not _are_sizes((offset,)) or not _are_sizes(shape) or not _are_sizes(strides):
        raise DumpError("its tensor has a size that is not a number")
    if len(shape) != len(strides) or len(shape) > MAX_RANK:
        raise DumpError("its tensor has a shape and strides that do not fit together")
    conjugate, negative = metadata.get("conj") is True, metadata.get("neg") is True
    return Tensor(storage, dtype, offset, shape, strides, conjugate, negative)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(value) is int and value >= 0 for value in values)


def _memoize(machine: _Machine, index: int) -> None:
    machine.memo[index] = machine.stack[-1]


_OPCODES: dict[bytes, Callable[[_Machine], object]] = {
    b"\x80": lambda m: m.take(1),
    b"\x95": lambda m: m.take(8),
    b"(": lambda m: m.stack.append(_MARK),
    b")": lambda m: m.stack.append(()),
    b"}": lambda m: m.stack.append({}),
    b"N": lambda m: m.stack.append(None),
    b"\x88": lambda m: m.stack.append(True),
    b"\x89": lambda m: m.stack.append(False),
    b"K": lambda m: m.stack.append(m.number("<B")),
    b"M": lambda m: m.stack.append(m.number("<H")),
    b"J": lambda m: m.stack.append(m.number("<i")),
    b"\x8a": lambda m: m.stack.append(int.from_bytes(m.take(m.number("<B")), "little", signed=True)),
    b"X": lambda m: m.stack.append(m.take(m.number("<I")).decode("utf-8")),
    b"\x8c": lambda m: m.stack.append(m.take(m.number("<B")).decode("utf-8")),
    b"t": lambda m: m.stack.append(tuple(m.pop_to_mark())),
    b"\x85": lambda m: m.pop_tuple(1),
    b"\x86": lambda m: m.pop_tuple(2),
    b"\x87": lambda m: m.pop_tuple(3),
    b"q": lambda m: _memoize(m, m.number("<B")),
    b"r": lambda m: _memoize(m, m.number("<I")),
    b"\x94": lambda m: _memoize(m, len(m.memo)),
    b"h": lambda m: m.stack.append(m.memo[m.number("<B")]),
    b"j": lambda m: m.stack.append(m.memo[m.number("<I")]),
    b"c": lambda m: m.push_global(f"{m.line()} {m.line()}"),
    b"Q": lambda m: m.load_storage(),
    b"R": lambda m: m.reduce(),
    b"s": lambda m: m.set_item(),
    b"u": lambda m: m.set_items(),
}
