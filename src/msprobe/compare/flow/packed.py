"""Parameters that the two runs hold differently: packed into one or several, tied, or under different names.

Their gradients and updates have no counterpart by name; here they get those of the other run that have the same
numbers, by the id of the row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msprobe.compare.calls import FORWARD, GRADS, module_path
from msprobe.compare.flow.settle import is_evidence
from msprobe.compare.measure.distance import count, number, of_statistics, value_key
from msprobe.compare.operators import UPDATE
from msprobe.compare.rows import Group, Row, is_tensor

_EQUAL = 1e-7
"""How far apart the statistics of a parameter under different names may be: an update is a small part of it."""


def packed_rows(groups: Sequence[Group]) -> dict[int, tuple[Row, ...]]:
    """Gradients and updates of parameters that only one run has, by the id of the row, with those of the other run in
    the same module that have the same numbers."""
    sides: dict[tuple[str, str], tuple[list[Row], list[Row]]] = {}
    for match, rows in groups:
        call = match.call
        is_update, is_gradient = call.key.startswith(UPDATE), call.direction == GRADS
        if match.how != "unmatched" or not (is_update or is_gradient or call.kind == "module"):
            continue
        path = call.key.removeprefix(UPDATE).rpartition(".")[0] if is_update else module_path(call.key)
        for row in rows:
            if is_tensor(row.target or row.golden) and (call.kind != "module" or row.slot.startswith("parameters.")):
                kind = row.slot if is_update else "gradient" if is_gradient else "parameter"
                sides.setdefault((path.rpartition(".")[0], kind), ([], []))[match.target is None].append(row)
    found: dict[int, tuple[Row, ...]] = {}
    for ours, theirs in sides.values():
        first, second = (_together([row.target or row.golden or {} for row in side]) for side in (ours, theirs))
        if first and second and all(math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-12) for a, b in zip(first, second)):
            found.update((id(row), tuple(theirs)) for row in ours)
            found.update((id(row), tuple(ours)) for row in theirs)
    found.update(_renamed_updates(groups))
    return found


def _renamed_updates(groups: Sequence[Group]) -> dict[int, tuple[Row, ...]]:
    """Updates, gradients after the backward and values in the forward of parameters under a name that only one run has,
    with the updates of the other run that are the same: before, gradient and after."""
    ours: list[Sequence[Row]] = []
    theirs: dict[object, list[Sequence[Row]]] = {}
    for match, rows in groups:
        if match.how == "unmatched" and match.call.key.startswith(UPDATE) and len(rows) == 3:
            if match.target is not None:
                ours.append(rows)
            else:
                theirs.setdefault(value_key(rows[0].golden), []).append(rows)
    found: dict[int, tuple[Row, ...]] = {}
    renamed: dict[str, tuple[Row, ...]] = {}
    for one in ours if theirs else ():
        same = [other for other in theirs.get(value_key(one[0].target), ()) if all(map(_is_same_item, one, other))]
        if len(same) == 1:
            found.update((id(row), tuple(same[0])) for row in one)
            found.update((id(row), tuple(one)) for row in same[0])
            names = (rows[0].match.call.key.removeprefix(UPDATE) for rows in (one, same[0]))
            renamed.update(zip(names, (tuple(same[0]), tuple(one))))
    for match, rows in groups if renamed else ():
        for row in rows if match.call.kind in ("module", "grads") else ():
            kind, _, own = row.slot.partition(".")
            name = f"{module_path(match.call.key)}.{own}".strip(".")
            if row.absent and kind in ("parameters", "parameters_grad") and name in renamed:
                found[id(row)] = renamed[name]
    return found


def _is_same_item(one: Row, other: Row) -> bool:
    ours, theirs = one.target or {}, other.golden or {}
    if one.slot != other.slot or not is_tensor(ours) or not is_tensor(theirs) or ours["shape"] != theirs["shape"]:
        return False
    away = of_statistics(ours, theirs).distance
    return away is not None and away <= _EQUAL


def _weights_of(groups: Sequence[Group]) -> tuple[dict[tuple[str, str], object], dict[tuple[str, str], object]]:
    """The number of the value of each parameter, by module and name, in both runs, where it was recorded."""
    found: tuple[dict[tuple[str, str], object], dict[tuple[str, str], object]] = ({}, {})
    for match, rows in groups:
        for known, call in zip(found, (match.target, match.golden)):
            if call is None or call.kind != "module" or call.direction != FORWARD:
                continue
            for row in rows:
                item = row.golden if known is found[1] else row.target
                if row.slot.startswith("parameters.") and isinstance((item or {}).get("value_id"), int):
                    known.setdefault((call.key, row.slot.removeprefix("parameters.")), (item or {})["value_id"])
    return found


def _together(items: Sequence[dict[str, Any]]) -> tuple[float, ...]:
    """Number of elements, maximum, minimum, sum and norm of several tensors as one; empty without these."""
    known = [[number(item.get(key)) for key in ("Max", "Min", "Mean", "Norm")] for item in items]
    if not known or any(value is None for one in known for value in one):
        return ()
    most, least, means, norms = ([value for value in column if value is not None] for column in zip(*known))
    sizes = [count(item) for item in items]
    total = math.hypot(*norms)
    mean = sum(size * mean for size, mean in zip(sizes, means)) / max(sum(sizes), 1)
    return sum(sizes), max(most), min(least), total, 1.0 + mean * math.sqrt(sum(sizes)) / (total or 1.0)


def tied_rows(groups: Sequence[Group]) -> dict[int, tuple[Row, ...]]:
    """Gradients of a parameter under a name that only one run has, with the gradient of the same parameter under a
    name that both have: tied weights."""
    found: dict[int, tuple[Row, ...]] = {}
    grads = [(match, rows) for match, rows in groups if match.call.direction == GRADS]
    weights = _weights_of(groups) if any(match.how == "unmatched" for match, _ in grads) else ({}, {})
    for golden, known in enumerate(weights):
        by_value: dict[object, list[Row]] = {}
        for match, rows in grads:
            call = match.golden if golden else match.target
            for row in rows if call is not None else ():
                value = known.get((call.key, row.slot.removeprefix("parameters_grad.")))  # type: ignore[union-attr]
                by_value.setdefault(value, []).append(row)
        by_value.pop(None, None)
        for rows in by_value.values():
            agree = tuple(row for row in rows if is_evidence(row))
            found.update((id(row), agree) for row in rows if row.absent and agree)
    return found
