"""Tensors of different shapes cannot be compared. This module follows them back to the call where the shape first
differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from msprobe.compare.calls import FORWARD, Match, shapes
from msprobe.compare.measure.distance import value_key
from msprobe.compare.origin.arguments import other_arguments
from msprobe.compare.origin.structure import candidate
from msprobe.compare.origin.trace import Trace
from msprobe.compare.origin.wording import Candidate
from msprobe.compare.rows import Row, is_tensor
from msprobe.messages import Message


def first_of_other_shape(index: int, trace: Trace) -> Optional[tuple[int, Row]]:
    """The first call that received or returned a tensor of a different shape, and the row that shows it; None if this
    call received none."""
    match, rows = trace.groups[index]
    given = _of_other_shape(rows, is_input=True)
    if not given or match.call.direction != FORWARD:
        return None
    found = index, given[0]
    while True:
        maker = maker_of_other_shape(found[1], found[0], trace)
        if maker is None:
            return found
        inputs = _of_other_shape(trace.groups[maker[0]][1], is_input=True)
        if not inputs:
            return maker
        found = maker[0], inputs[0]


def maker_of_other_shape(row: Row, index: int, trace: Trace) -> Optional[tuple[int, Row]]:
    """The earlier call that returned this input in both runs, in a different shape; an API rather than a module."""
    wanted = value_key(row.target), value_key(row.golden)
    if None in wanted:
        return None
    module = None
    for place in range(index - 1, -1, -1):
        match, rows = trace.groups[place]
        for made in _of_other_shape(rows, is_input=False) if _is_made(match) else ():
            if (value_key(made.target), value_key(made.golden)) == wanted:
                if match.call.kind != "module":
                    return place, made
                module = module or (place, made)
    return module


def blame_other_shape(index: int, row: Row, trace: Trace) -> Candidate:
    """The call that returns a different shape; its argument, if that differs."""
    match, rows = trace.groups[index]
    arguments = other_arguments(match, [], rows)
    if arguments:
        return candidate("argument", index, arguments[0], trace)
    ours, theirs = (str((item or {}).get("shape")) for item in (row.target, row.golden))
    said = Message("origin.shape", call=match.call.name, slot=row.slot, target=ours, golden=theirs)
    return replace(candidate("call", index, row, trace), said=said)


def _is_made(match: Match) -> bool:
    return match.how != "unmatched" and match.call.direction == FORWARD


def _of_other_shape(rows: Sequence[Row], is_input: bool) -> list[Row]:
    return [
        row
        for row in rows
        if row.is_input is is_input
        and is_tensor(row.target)
        and is_tensor(row.golden)
        and shapes(row.target) != shapes(row.golden)
    ]
