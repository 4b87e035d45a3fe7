"""Splits a record into its tensors and scalars, each with the name of its place."""

from __future__ import annotations

import math
from typing import Any, Optional

from msprobe.dump import record_keys as keys

Record = dict[str, Any]
_LISTED = {keys.INPUT_ARGS: "input", keys.INPUT: "input", keys.OUTPUT: "output"}
_PLACES = {slot: tuple(f"{slot}.{place}" for place in range(16)) for slot in ("input", "output")}
"""The slots that nearly all records have: one text each for a million rows."""
_NAMED = {keys.INPUT_KWARGS: "input", keys.ATTRIBUTES: "input", keys.PARAMETERS: "parameters"}


def items(record: Record) -> list[tuple[str, Any]]:
    """The tensors and scalars of a record, each with its slot: `input.0`, `input.key`, `parameters.weight`.

    None stays None. The attributes of a MindSpore Primitive count as arguments. Other members than input, output and
    parameters are gradients of parameters.
    """
    found: list[tuple[str, Any]] = []
    for key, value in record.items():
        slot = _LISTED.get(key)
        if slot is not None:
            alone = not isinstance(value, (list, dict)) or _is_leaf(value)
            _add_leaves(found, f"{slot}.0" if alone else slot, value)
        elif key in _NAMED:
            _add_leaves(found, _NAMED[key], value)
        elif key not in keys.FLAGS or isinstance(value, list):  # a list: the gradient of the parameter with this name
            alone = isinstance(value, list) and len(value) == 1
            _add_leaves(found, f"parameters_grad.{key}", value[0] if alone else value)
    return found


def leaves(slot: str, value: Any) -> list[tuple[str, Any]]:
    """Walks a nested value: lists add `.i`, dicts `.key`."""
    found: list[tuple[str, Any]] = []
    _add_leaves(found, slot, value)
    return found


def _add_leaves(found: list[tuple[str, Any]], slot: str, value: Any) -> None:
    if isinstance(value, list):
        places = _PLACES.get(slot, ())
        for position, one in enumerate(value):
            place = places[position] if position < len(places) else f"{slot}.{position}"
            if one.__class__ is dict and one.get("type").__class__ is str:  # most are leaves: no call for them
                found.append((place, one))
            else:
                _add_leaves(found, place, one)
    elif isinstance(value, dict) and not _is_leaf(value):
        for key, one in value.items():
            _add_leaves(found, f"{slot}.{key}", one)
    else:
        found.append((slot, value))


def _is_leaf(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def true_count(item: object) -> Optional[tuple[int, int]]:
    """How many elements of a recorded tensor of booleans are true, and how many there are; None if that is unknown."""
    if not isinstance(item, dict) or "bool" not in str(item.get("dtype", "")).lower():
        return None
    mean, shape = read_number(item.get("Mean")), item.get("shape")
    if mean is None or not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        return None
    elements = math.prod(shape)
    return (round(mean * elements), elements) if 0.0 <= mean <= 1.0 and elements < 1 << 53 else None


def read_number(value: object) -> Optional[float]:
    """A number of a record; None for anything else in a damaged file."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None
