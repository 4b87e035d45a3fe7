"""Splits a record into its tensors and scalars, each with the name of its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

from msprobe.dump import record_keys as keys

Record = dict[str, Any]
_LISTED = {keys.INPUT_ARGS: "input", keys.INPUT: "input", keys.OUTPUT: "output"}
_NAMED = {keys.INPUT_KWARGS: "input", keys.ATTRIBUTES: "input", keys.PARAMETERS: "parameters"}


def items(record: Record) -> Iterator[tuple[str, Any]]:
    """The tensors and scalars of a record, each with its slot: `input.0`, `input.key`, `parameters.weight`.

    None stays None. The attributes of a MindSpore Primitive count as arguments. Other members than input, output and
    parameters are gradients of parameters.
    """
    for key, value in record.items():
        if key in keys.FLAGS and not isinstance(value, list):  # a list: the gradient of the parameter with this name
            continue
        if key in _LISTED:
            slot = _LISTED[key]
            alone = not isinstance(value, (list, dict)) or _is_leaf(value)
            yield from leaves(f"{slot}.0" if alone else slot, value)
        elif key in _NAMED:
            yield from leaves(_NAMED[key], value)
        else:
            alone = isinstance(value, list) and len(value) == 1
            yield from leaves(f"parameters_grad.{key}", value[0] if alone else value)


def leaves(slot: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Walks a nested value: lists add `.i`, dicts `.key`."""
    if isinstance(value, list):
        for position, one in enumerate(value):
            if one.__class__ is dict and one.get("type").__class__ is str:  # most are leaves: no generator for them
                yield f"{slot}.{position}", one
            else:
                yield from leaves(f"{slot}.{position}", one)
    elif isinstance(value, dict) and not _is_leaf(value):
        for key, one in value.items():
            yield from leaves(f"{slot}.{key}", one)
    else:
        yield slot, value


def _is_leaf(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def read_number(value: object) -> Optional[float]:
    """A number of a record; None for anything else in a damaged file."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None
