"""Finds the tensors in the arguments and the result of a call, however nested."""

from __future__ import annotations

from typing import Any

_DEPTH = 8
_WITHOUT_TENSORS = frozenset({type(None), bool, int, float, complex, str, bytes})


class TensorSearch:
    """Finds the tensors of one framework, in order. `kind` is the class of its tensors."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def in_value(self, value: Any, found: list[Any], depth: int = _DEPTH) -> list[Any]:
        """Appends the tensors of a nested value to `found` and returns it."""
        if isinstance(value, self._kind):
            found.append(value)
        elif depth and type(value) not in _WITHOUT_TENSORS:
            if isinstance(value, (list, tuple)):
                for member in value:
                    self.in_value(member, found, depth - 1)
            elif isinstance(value, dict):
                for member in value.values():
                    self.in_value(member, found, depth - 1)
            elif hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
                for field in value.__dataclass_fields__:
                    self.in_value(getattr(value, field, None), found, depth - 1)
        return found

    def in_call(self, args: Any, kwargs: Any) -> list[Any]:
        """The tensors among the arguments of a call: first the positional ones."""
        kind = self._kind
        found: list[Any] = []
        for value in args:
            if isinstance(value, kind):
                found.append(value)
            elif type(value) not in _WITHOUT_TENSORS:
                self.in_value(value, found)
        if kwargs:
            self.in_value(kwargs, found)
        return found
