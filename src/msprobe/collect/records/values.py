"""Renders arguments and results of a call as the JSON text of dump.json.

Text and not objects: a record is rendered once, when it is seen, and later only copied. The frontend's adapter renders
tensors and other values of the framework; this module renders everything else.
"""

from __future__ import annotations

import dataclasses
import json
from functools import lru_cache
from typing import Any, Callable, Optional, Protocol

from msprobe.system import native
from msprobe.system.interrupts import let_through

_values_in_c = native.load("msprobe.collect.records._values")

_DEPTH = 16
_TEXT = 1000
_BITS = 4096  # limit for an int: Python reads no JSON number of more than 4300 digits
_REPEATED = 10_000
"""How many values of one argument may be repeated: objects that refer to each other can appear exponentially often.
A value that is only long is not cut."""
_Seen = dict[int, int]
"""The containers of one argument by id; key 0, which is never an id, has the number of repeated values."""


class Adapter(Protocol):
    """What a frontend renders. `quick_text`, if it has one, gives the text of a tensor without a file, or None if
    `tensor_text` must render it."""

    tensor_types: frozenset[type]

    def tensor_text(self, tensor: Any, path: str) -> str:
        """The JSON object of one tensor. `path` is the name of its file, "" if it has none."""

    def other_text(self, value: Any, path: str) -> Optional[str]:
        """The JSON of a framework value (a dtype, a device, a subclass of tensor); None for other values."""


_encode = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps would create an encoder at every call


def quoted(text: str) -> str:
    return _encode(text)


@lru_cache(maxsize=4096)
def key_text(name: str) -> str:
    """A name that occurs often, as JSON: of a parameter or an argument."""
    return quoted(name)


def scalar_text(kind: str, value: object) -> str:
    return f'{{"type": "{kind}", "value": {_encode(value)}}}'


class MarkedValue:
    """A value with further JSON members: `members` follow those of the value."""

    __slots__ = ("members", "value")

    def __init__(self, value: Any, members: str) -> None:
        self.value = value
        self.members = members


class Values:
    """Renders arguments and results. An unknown value becomes the name of its type. Never raises.

    `sequence` takes the arguments of a call, `mapping` keyword arguments, `result` the result of a call, `value` one
    value by itself; each also takes the path of its tensor files, "" if there are none.
    """

    __slots__ = ("mapping", "result", "sequence", "value")

    def __init__(self, adapter: Adapter) -> None:
        texts: Any = PythonValues(adapter)
        if _values_in_c is not None:
            quick_text = getattr(adapter, "quick_text", None)
            texts = _values_in_c.ValueTexts(adapter.tensor_types, quick_text, adapter.tensor_text, texts)
        self.sequence: Callable[[Any, str], str] = texts.sequence
        self.mapping: Callable[[Any, str], str] = texts.mapping
        self.result: Callable[[Any, str], str] = texts.result
        self.value: Callable[[Any, str], str] = texts.value


class PythonValues:
    """`Values` in Python: for machines without a compiler, and for what the C version leaves to it."""

    def __init__(self, adapter: Adapter) -> None:
        self._tensor = adapter.tensor_text
        self._other = adapter.other_text
        self._tensor_types = adapter.tensor_types
        self._simple: dict[type, Callable[[Any], str]] = {
            type(None): lambda v: "null",
            bool: lambda v: '{"type": "bool", "value": true}' if v else '{"type": "bool", "value": false}',
            int: _int_text,
            float: _float_text,
            str: _string_text,
            complex: lambda v: scalar_text("complex", str(v)),
            bytes: lambda v: f'{{"type": "bytes", "length": {len(v)}}}',
            slice: lambda v: scalar_text("slice", [_index(v.start), _index(v.stop), _index(v.step)]),
            type(Ellipsis): lambda v: '{"type": "ellipsis", "value": "..."}',
        }

    def sequence(self, values: Any, path: str) -> str:
        """The arguments of a call, or the members of a list: `[…]`."""
        tensor_types = self._tensor_types
        parts = []
        for number, value in enumerate(values):
            where = f"{path}.{number}" if path else ""
            if type(value) in tensor_types:
                parts.append(self._tensor(value, where))
            else:
                parts.append(self._value(value, where))
        return f"[{', '.join(parts)}]"

    def mapping(self, values: Any, path: str) -> str:
        """Keyword arguments, or a dict: `{…}`."""
        if not values:
            return "{}"
        return self._mapping(_named(values), path, _DEPTH, None)

    def result(self, value: Any, path: str) -> str:
        """The result of a call as a list: the members of a tuple, or one item."""
        if type(value) in self._tensor_types:
            return f"[{self._tensor(value, f'{path}.0' if path else '')}]"
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return self.sequence(value, path)
        return self.sequence((value,), path)

    def value(self, value: Any, path: str) -> str:
        """One value by itself."""
        if type(value) in self._tensor_types:
            return self._tensor(value, path)
        return self._value(value, path)

    def _value(self, value: Any, path: str, depth: int = _DEPTH, seen: Optional[_Seen] = None) -> str:
        kind = type(value)
        if kind in self._tensor_types:
            return self._tensor(value, path)
        simple = self._simple.get(kind)
        if simple is not None:
            return simple(value)
        if kind is MarkedValue:
            text = self._value(value.value, path, depth, seen)
            return f"{text[:-1]}, {value.members}}}" if text.startswith("{") else text
        other = self._other(value, path)
        if other is not None:
            return other
        if depth == 0:
            return _type_text(value)
        if isinstance(value, (list, tuple, dict)) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
            return self._container(value, path, depth - 1, {} if seen is None else seen)
        for base, render in ((bool, bool), (int, int), (float, float), (str, str)):
            if isinstance(value, base):  # a subclass: numpy scalars, str and int enums
                return self._simple[base](render(value))
        return _type_text(value)

    def _container(self, value: Any, path: str, depth: int, seen: _Seen) -> str:
        items: Any = None
        if isinstance(value, dict):
            items = _named(value)
        elif isinstance(value, (list, tuple)):
            items = list(zip(value._fields, value)) if hasattr(value, "_fields") else None
        else:
            items = [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
        if id(value) in seen:
            seen[0] = seen.get(0, 0) + 1 + len(value if items is None else items)
            if seen[0] > _REPEATED:
                return f'{_type_text(value)[:-1]}, "left_out": "its members are above: it stands here in many places"}}'
        seen[id(value)] = 1
        if items is not None:
            return self._mapping(items, path, depth, seen)
        members = [
            self._value(member, f"{path}.{number}" if path else "", depth, seen) for number, member in enumerate(value)
        ]
        return f"[{', '.join(members)}]"

    def _mapping(self, items: Any, path: str, depth: int, seen: Optional[_Seen]) -> str:
        """Without `seen`, each member is a separate argument."""
        members = [
            f"{key_text(name)}: {self._value(member, f'{path}.{name}' if path else '', depth, seen)}"
            for name, member in items
        ]
        return f"{{{', '.join(members)}}}"


def _named(values: Any) -> Any:
    """The items of a dict under unique names: 0 and "0" stay two items."""
    for key in values:
        if type(key) is not str:
            break
    else:
        return values.items()
    named: dict[str, Any] = {}
    numbers: dict[str, int] = {}
    for key, value in values.items():
        try:
            name = first = str(key)
        except Exception as error:
            let_through(error)
            name = first = type(key).__name__
        while name in named:
            numbers[first] = numbers.get(first, 1) + 1
            name = f"{first}#{numbers[first]}"
        named[name] = value
    return named.items()


def _int_text(value: int) -> str:
    if value.bit_length() <= _BITS:
        return f'{{"type": "int", "value": {value}}}'
    return f'{{"type": "int", "bits": {value.bit_length()}}}'


def _float_text(value: float) -> str:
    if value - value == 0:
        return f'{{"type": "float", "value": {value!r}}}'
    return scalar_text("float", value)  # NaN, infinity


def _string_text(value: str) -> str:
    if len(value) <= _TEXT:
        return scalar_text("str", value)
    return f'{{"type": "str", "value": {quoted(value[:_TEXT])}, "length": {len(value)}}}'


def _index(value: Any) -> Any:
    """A bound of a slice: a number, or the name of its type (a tensor cannot be rendered here)."""
    if value is None:
        return None
    index = getattr(value, "__index__", None)
    try:
        number = index() if index else None
        return number if number is not None and number.bit_length() <= _BITS else type(value).__name__
    except Exception as error:
        let_through(error)
        return type(value).__name__


def _type_text(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, type):
        return f'{{"type": "type", "value": {quoted(name)}}}'
    if callable(value) and hasattr(value, "__qualname__"):
        return f'{{"type": {quoted(name)}, "value": {quoted(str(value.__qualname__))}}}'
    return f'{{"type": {quoted(name)}}}'
