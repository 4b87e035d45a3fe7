"""Parses a pickle as data: objects become names and plain values. No class is imported and nothing is called."""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from msprobe.dump.errors import DumpError
from msprobe.dump.untrusted.regular_files import read_regular

_KEYS = (str, int, float, bytes, type(None))
_MARK = object()


@dataclass(eq=False)
class PickledObject:
    """An object in a pickle: `kind` is "module name" of its class or function."""

    kind: str
    arguments: tuple[Any, ...] = ()
    state: Any = field(default_factory=dict)

    def __str__(self) -> str:
        return self.kind


def read_pickle(file: Path) -> Any:
    """The value in a pickle. Raises DumpError for a damaged one, and for operations that plain data does not need."""
    machine = _Machine()
    try:
        content = read_regular(file)
    except OSError as error:
        raise DumpError(f"{file} is too large or cannot be read: {error.strerror or error}.") from None
    try:
        for operation, argument, _ in pickletools.genops(content):
            if operation.name == "STOP":
                return machine.stack[-1]
            machine.step(operation.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DumpError(f"{file} is damaged: {error}.") from None
    raise DumpError(f"{file} is cut off.")


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _LITERALS:
            self.stack.append(argument)
        elif name not in _IGNORED:
            action = _ACTIONS.get(name)
            if action is None:
                raise ValueError(f"operation {name} is not plain data")
            action(self, argument)

    def take_marked(self) -> list[Any]:
        place = len(self.stack) - 1 - self.stack[::-1].index(_MARK)
        taken = self.stack[place + 1 :]
        del self.stack[place:]
        return taken

    def take(self, count: int) -> tuple[Any, ...]:
        taken = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        return taken

    def memoize(self, number: Any) -> None:
        self.memo[len(self.memo) if number is None else number] = self.stack[-1]

    def recall(self, number: Any) -> None:
        self.stack.append(self.memo[number])

    def name(self, argument: Any) -> None:
        text = argument if argument is not None else " ".join(self.take(2))
        self.stack.append(PickledObject(text))

    def build(self, argument: Any) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], PickledObject):
            self.stack[-1].state = state[1] if _is_slots(state) else state

    def create(self, argument: Any) -> None:
        kind, arguments = self.take(2)
        self.stack.append(PickledObject(str(kind), tuple(arguments)))

    def extend(self, values: list[Any]) -> None:
        top = self.stack[-1]
        top.update(map(_key, values)) if isinstance(top, set) else top.extend(values)

    def set_items(self, values: list[Any]) -> None:
        self.stack[-1].update(zip(map(_key, values[::2]), values[1::2]))


def _key(value: Any) -> Any:
    """A key of a dict or a set. Not a tuple: the hash of tuples in tuples recurses in C, without a limit."""
    if not isinstance(value, (*_KEYS, PickledObject)):
        raise ValueError(f"{type(value).__name__} as a key is not plain data")
    return value


def _is_slots(state: Any) -> bool:
    return isinstance(state, tuple) and len(state) == 2 and state[0] is None and isinstance(state[1], dict)


_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": set,
    "MARK": lambda: _MARK,
}
_LITERALS = {
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "BINFLOAT",
    "SHORT_BINUNICODE",
    "BINUNICODE",
    "BINUNICODE8",
    "SHORT_BINBYTES",
    "BINBYTES",
}
_IGNORED = {"PROTO", "FRAME"}
_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "MEMOIZE": _Machine.memoize,
    "BINPUT": _Machine.memoize,
    "LONG_BINPUT": _Machine.memoize,
    "BINGET": _Machine.recall,
    "LONG_BINGET": _Machine.recall,
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": _Machine.name,
    "BUILD": _Machine.build,
    "NEWOBJ": _Machine.create,
    "REDUCE": _Machine.create,
    "SETITEM": lambda m, _: m.set_items(list(m.take(2))),
    "SETITEMS": lambda m, _: m.set_items(m.take_marked()),
    "APPEND": lambda m, _: m.extend(list(m.take(1))),
    "APPENDS": lambda m, _: m.extend(m.take_marked()),
    "ADDITEMS": lambda m, _: m.extend(m.take_marked()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.take_marked())),
    "TUPLE1": lambda m, _: m.stack.append(m.take(1)),
    "TUPLE2": lambda m, _: m.stack.append(m.take(2)),
    "TUPLE3": lambda m, _: m.stack.append(m.take(3)),
}
