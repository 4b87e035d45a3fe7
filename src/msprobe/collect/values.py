"""What a call received or returned, as the JSON text that dump.json holds.

Text rather than objects: a record is rendered once, when it is seen, and only copied afterwards.
Tensors and other framework values are rendered by the frontend's adapter; everything else here.
"""

from __future__ import annotations

import dataclasses
import json
from functools import lru_cache
from typing import Any, Callable, Optional, Protocol

_DEPTH = 16
_TEXT = 1000


class Adapter(Protocol):
    """What a framework must be able to do for a record to be rendered."""

    tensor_types: frozenset[type]

    def tensor_text(self, tensor: Any, path: str) -> str:
        """The JSON object of one tensor. `path` is where a file of it would be named after; "" when none may be."""

    def other_text(self, value: Any, path: str) -> Optional[str]:
        """The JSON of a framework value (a dtype, a device, a subclass of tensor), or None when it is not one."""


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@lru_cache(maxsize=4096)
def key_text(name: str) -> str:
    """A name that comes again and again: of a parameter, of an argument."""
    return quoted(name)


def scalar_text(kind: str, value: object) -> str:
    return f'{{"type": "{kind}", "value": {json.dumps(value, ensure_ascii=False)}}}'


class Values:
    """Renders arguments and results. Never raises for an odd value: it is named by its type instead."""

    def __init__(self, adapter: Adapter) -> None:
        self._tensor = adapter.tensor_text
        self._other = adapter.other_text
        self._tensor_types = adapter.tensor_types
        self._simple: dict[type, Callable[[Any], str]] = {
            type(None): lambda v: "null",
            bool: lambda v: '{"type": "bool", "value": true}' if v else '{"type": "bool", "value": false}',
            int: lambda v: f'{{"type": "int", "value": {v}}}',
            float: lambda v: scalar_text("float", v),
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
                parts.append(self._value(value, where, _DEPTH))
        return f"[{', '.join(parts)}]"

    def mapping(self, values: Any, path: str) -> str:
        """Keyword arguments, or a dict: `{…}`."""
        if not values:
            return "{}"
        return self._mapping(values.items(), path, _DEPTH)

    def result(self, value: Any, path: str) -> str:
        """What a call returned: a tuple gives its members, anything else a list of one."""
        if type(value) in self._tensor_types:
            return f"[{self._tensor(value, f'{path}.0' if path else '')}]"
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return self.sequence(value, path)
        return self.sequence((value,), path)

    def value(self, value: Any, path: str) -> str:
        """One value as it stands."""
        if type(value) in self._tensor_types:
            return self._tensor(value, path)
        return self._value(value, path, _DEPTH)

    def _value(self, value: Any, path: str, depth: int) -> str:
        kind = type(value)
        if kind in self._tensor_types:
            return self._tensor(value, path)
        simple = self._simple.get(kind)
        if simple is not None:
            return simple(value)
        text = self._other(value, path)
        if text is not None:
            return text
        if depth == 0:
            return _type_text(value)
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            members = [
                self._value(member, f"{path}.{number}" if path else "", depth - 1)
                for number, member in enumerate(value)
            ]
            return f"[{', '.join(members)}]"
        if isinstance(value, tuple):
            return self._mapping(zip(value._fields, value), path, depth - 1)  # type: ignore[attr-defined]
        if isinstance(value, dict):
            return self._mapping(value.items(), path, depth - 1)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
            return self._mapping(fields, path, depth - 1)
        for base, render in ((bool, bool), (int, int), (float, float), (str, str)):
            if isinstance(value, base):  # a subclass: numpy scalars, str and int enums
                return self._simple[base](render(value))
        return _type_text(value)

    def _mapping(self, items: Any, path: str, depth: int) -> str:
        members = []
        for key, member in items:
            name = str(key)
            members.append(f"{key_text(name)}: {self._value(member, f'{path}.{name}' if path else '', depth)}")
        return f"{{{', '.join(members)}}}"


def _string_text(value: str) -> str:
    if len(value) <= _TEXT:
        return scalar_text("str", value)
    return f'{{"type": "str", "value": {quoted(value[:_TEXT])}, "length": {len(value)}}}'


def _index(value: Any) -> Any:
    """A bound of a slice: a number, or what its type is called (a tensor has no JSON form here)."""
    if value is None or isinstance(value, int):
        return value
    index = getattr(value, "__index__", None)
    try:
        return index() if index else type(value).__name__
    except Exception:
        return type(value).__name__


def _type_text(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, type):
        return f'{{"type": "type", "value": {quoted(name)}}}'
    if callable(value) and hasattr(value, "__qualname__"):
        return f'{{"type": {quoted(name)}, "value": {quoted(str(value.__qualname__))}}}'
    return f'{{"type": {quoted(name)}}}'
