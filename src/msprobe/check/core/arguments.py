"""Reads the arguments of a record from JSON to Python values; tensors become numbered places.

The same tree is filled several times: with tensors on the device under test, with those of the golden side, and with
those changed by rounding. An object or a function, of which a record has only the name, cannot be made again: that
raises `NotMade`.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

from msprobe.check.core.generate import NotMade
from msprobe.dump.record_keys import INPUT_ARGS, INPUT_KWARGS, OUTPUT, SHARED_GRADIENT

TENSORS = frozenset(("torch.Tensor", "torch.nn.parameter.Parameter", "mindspore.Tensor", "numpy.ndarray"))
NAMED = frozenset(("torch.dtype", "torch.device", "torch.memory_format", "torch.layout", "mindspore.dtype"))
_DEPTH = 32


def flatten(value: Any, kinds: tuple[type, ...], tensor: Callable[[Any], Any]) -> list[Any]:
    """The tensors of a result, in order. `kinds` are the tensor types; `tensor` makes a tensor of a number."""
    if isinstance(value, kinds):
        return [value]
    if isinstance(value, (bool, int, float, complex)):
        return [tensor(value)]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [one for part in value for one in flatten(part, kinds, tensor)]
    return []


class Place(NamedTuple):
    """The place of a tensor: its number among the tensors of the call."""

    number: int


class NamedValue(NamedTuple):
    """A value of the framework by name: a dtype, a device."""

    kind: str
    name: str


class Arguments(NamedTuple):
    """The arguments of a call. `tensors` are the records of the tensors in argument order, positional ones first."""

    args: list[Any]
    kwargs: dict[str, Any]
    tensors: list[dict[str, Any]]


def read(record: dict[str, Any]) -> Arguments:
    tensors: list[dict[str, Any]] = []
    args = [_value(one, tensors, _DEPTH) for one in record[INPUT_ARGS]]
    kwargs = {str(key): _value(one, tensors, _DEPTH) for key, one in (record.get(INPUT_KWARGS) or {}).items()}
    return Arguments(args, kwargs, tensors)


def fill(value: Any, tensors: list[Any], named: Callable[[NamedValue], Any]) -> Any:
    """The tree with all places and names filled in."""
    if isinstance(value, Place):
        return tensors[value.number]
    if isinstance(value, NamedValue):
        return named(value)
    if isinstance(value, list):
        return [fill(one, tensors, named) for one in value]
    if isinstance(value, dict):
        return {key: fill(one, tensors, named) for key, one in value.items()}
    return value


def is_tensor(value: Any) -> bool:
    return isinstance(value, dict) and "dtype" in value and "shape" in value and isinstance(value.get("type"), str)


def flat_records(value: Any, nulls: bool = False) -> list[Any]:
    """The tensors and numbers of a recorded result, in order. With `nulls`, also the nulls."""
    if value is None:
        return [None] if nulls else []
    if isinstance(value, list):
        return [one for part in value for one in flat_records(part, nulls)]
    if isinstance(value, dict):
        if is_tensor(value) or value.get("type") in ("bool", "int", "float", "complex"):
            return [value]
        if "type" not in value:
            return [one for part in value.values() for one in flat_records(part, nulls)]
    return []


def shared_gradients(backward: Optional[dict[str, Any]], tensors: list[dict[str, Any]]) -> dict[int, int]:
    """For arguments that were the same tensor (q = k = v): the position of each, and the position of the one that
    has their common gradient in the record."""
    shared, gradients = (backward or {}).get(SHARED_GRADIENT), (backward or {}).get(OUTPUT)
    found: dict[int, int] = {}
    if not isinstance(shared, list) or not isinstance(gradients, list) or len(gradients) != len(tensors):
        return found
    first: Optional[int] = None
    for number in shared:
        if type(number) is not int or not 0 <= number < len(tensors):
            return {}
        if gradients[number] is not None:
            first = number
        elif first is not None and tensors[first].get("shape") == tensors[number].get("shape"):
            found[number] = first
    return found


def _value(value: Any, tensors: list[dict[str, Any]], depth: int) -> Any:
    if value is None:
        return None
    if depth == 0:
        raise NotMade("its arguments are nested too deeply")
    if isinstance(value, list):
        return [_value(one, tensors, depth - 1) for one in value]
    if not isinstance(value, dict):
        raise NotMade(f"an argument is recorded as {str(value)[:40]!r}")
    kind = value.get("type")
    if not isinstance(kind, str):
        return {str(key): _value(one, tensors, depth - 1) for key, one in value.items()}
    if is_tensor(value):
        if kind not in TENSORS:
            raise NotMade(f"an argument is a {kind[:60]}, which cannot be made again")
        tensors.append(value)
        return Place(len(tensors) - 1)
    return _plain(kind, value)


def _plain(kind: str, value: dict[str, Any]) -> Any:
    held = value.get("value")
    simple = {"int": int, "float": (float, int), "bool": bool, "str": str}.get(kind)
    if simple is not None and isinstance(held, simple) and "length" not in value:  # type: ignore[arg-type]
        return float(held) if kind == "float" else held  # type: ignore[arg-type]
    if kind == "slice" and isinstance(held, list) and len(held) == 3:
        if all(one is None or type(one) is int for one in held):
            return slice(*held)
    elif kind == "ellipsis":
        return ...
    elif kind == "torch.Size" and isinstance(held, list) and all(type(one) is int for one in held):
        return list(held)
    elif kind == "complex" and isinstance(held, str):
        try:
            return complex(held)
        except ValueError:
            raise NotMade(f"{held[:40]!r} is not a complex number") from None
    elif isinstance(held, str) and kind in NAMED:
        return NamedValue(kind, held)
    raise NotMade(f"an argument of type {kind[:60]} cannot be made again from a dump")
