"""Gradients that are only rounding in both runs, and what an optimizer makes of them.

The sum that makes such a gradient cancels (a bias before a normalisation, a bias of the keys in attention): what is
left is no larger than the rounding of the sum. Adam divides it by its own size and makes full steps of it. It may be
the complete gradient of a parameter, or some elements (the keys in one projection of queries, keys and values).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple, Optional

from msprobe.compare.align.translate import operation_of
from msprobe.compare.calls import GRADS, module_path
from msprobe.compare.flow.graph import Graph, Step, Value
from msprobe.compare.measure.distance import count, epsilon, number
from msprobe.compare.measure.order import ROUNDING, is_in_order
from msprobe.compare.operators import UPDATE, is_derived
from msprobe.compare.reasons import Kind
from msprobe.compare.rows import ERROR, PASS, WARNING, Group, Item, Row, is_tensor

MARGIN = 4.0
"""How many times the expected rounding of a sum the result of a sum that cancels may be."""
FEW_STEPS = 4.0
"""How far apart the updates of such a parameter may be: in steps of the optimizer."""
MANY = 1 / 4
"""The share of parameters whose updates must differ, to be no rounding."""

Graphs = tuple[Graph, Graph]
Names = Set[str]
"""The names of the calls of one run that belong to clipping or to an optimizer."""


class Rounded(NamedTuple):
    """A parameter with such a gradient: its name, the row of its gradient, and what the forward of each run computes
    with it."""

    name: str
    gradient: Row
    effects: tuple[list[Value], ...]


def rounded_gradients(groups: Sequence[Group], graphs: Graphs, updating: tuple[Names, Names]) -> dict[int, Rounded]:
    """By the id of each row that follows from such a gradient: the gradient, the state of the optimizer, the update."""
    updates = _updates(groups)
    makers = [_makers(graph) for graph in graphs]
    memory = [_by_memory(graph) for graph in graphs]
    found: dict[int, Rounded] = {}
    for name, row in _gradients(groups, updates):
        update = updates.get(name, [])
        gradients = [row, *(one for one in update if one.slot.endswith(".gradient") and one is not row)]
        values = [_parameter(graph, row, update, bool(golden)) for golden, graph in enumerate(graphs)]
        held = [_held(known, value) for known, value in zip(memory, values)]
        steps = [[step for one in side for step in known.get(id(one), ())] for known, side in zip(makers, held)]
        if not all(_are_rounding(gradients, side, bool(golden)) for golden, side in enumerate(steps)):
            continue
        if not _within_steps(update, updates):
            continue
        others = {id(one) for path, rows in updates.items() if path != name for one in rows}
        behind = [_behind(update, *side) for side in zip(graphs, updating)]
        if any(side & others for side in behind):
            continue
        effects = [_effects(side, one) for side, one in zip(held, updating)]
        rounded = Rounded(name, row, tuple(effects))
        found.update(dict.fromkeys([id(row), *(behind[0] & behind[1])], rounded))
    return found


def _gradients(groups: Sequence[Group], updates: Mapping[str, Sequence[Row]]) -> Iterator[tuple[str, Row]]:
    """The gradient of each parameter, by name. If a run calls no module that holds it, the one that the optimizer
    received."""
    known = set()
    for match, rows in groups:
        for row in rows if match.call.direction == GRADS and match.how != "unmatched" else ():
            name = f"{module_path(match.call.key)}.{row.slot.partition('.')[2]}".strip(".")
            known.add(name)
            yield name, row
    for name, update in updates.items():
        if name not in known:
            yield from ((name, row) for row in update if row.slot.endswith(".gradient"))


def _by_memory(graph: Graph) -> dict[object, list[Value]]:
    found: dict[object, list[Value]] = {}
    for value in graph.values:
        if value.memory is not None:
            found.setdefault(value.memory, []).append(value)
    return found


def _held(memory: Mapping[object, list[Value]], value: Optional[Value]) -> list[Value]:
    """The value of a parameter, with its views. A call may be given a view that was made before any recorded call: it
    is known by its memory."""
    if value is None or value.memory is None:
        return [value, *value.views] if value is not None else []
    return memory[value.memory]


def quotients(groups: Sequence[Group], graphs: Graphs) -> dict[int, list[Row]]:
    """Updates that differ though both runs compute them by the same quotient of tensors that agree, by the id of the
    row after the update, with the rows of these tensors. Where the divisor is only rounding, the quotient may be
    anything up to a step. It happens to a few parameters: a wrong quotient differs for many."""
    updates = _updates(groups)
    found = {}
    for update in updates.values():
        after = next((row for row in update if row.slot.endswith(".after")), None)
        if after is None or after.judgement.verdict not in (WARNING, ERROR) or not _within_steps(update, updates):
            continue
        given = [_divided(graph.of_row.get(id(after))) for graph in graphs]
        if given[0] and given[0] == given[1] and all(map(_is_the_same, given[0])):
            found[id(after)] = given[0]
    return found if len(found) <= MANY * len(updates) else {}


def _divided(value: Optional[Value]) -> list[Row]:
    """The tensors of the quotient that made the value of a parameter; empty if no quotient made it, or if the runs call
    it with different plain arguments."""
    written = value if value is None or value.maker is not None else value.source
    step = written.maker if written is not None else None
    if value is None or step is None or step.has_other_arguments or not step.is_matched:
        return []
    mine = [part.slot for part in step.takes if part.value.memory == value.memory is not None]
    if operation_of(step.call.key).removeprefix("foreach_") != "addcdiv" or len(mine) != 1:
        return []
    listed, place = mine[0].count(".") > 1, mine[0].rpartition(".")[2]
    parts = [part for part in step.takes if not listed or part.slot.rpartition(".")[2] == place]
    rows = [part.row for part in parts if part.row is not None]
    return rows if len(rows) == len(parts) == 3 else []


def _is_the_same(row: Row) -> bool:
    """Whether a tensor agrees element by element, except for rounding; or it is a parameter that earlier steps have
    moved in this way."""
    if row.why.kind is Kind.ROUNDING:
        return True
    close = row.distance is not None and row.distance <= ROUNDING * epsilon(row.golden or {})
    filled = row.distance == 0.0 and row.golden is not None and row.golden.get("Max") == row.golden.get("Min")
    return row.judgement.verdict == PASS and close and (row.measured is not None or filled or is_in_order(row))


def _updates(groups: Sequence[Group]) -> dict[str, list[Row]]:
    return {match.call.key.removeprefix(UPDATE): rows for match, rows in groups if match.call.key.startswith(UPDATE)}


def _within_steps(update: Sequence[Row], updates: Mapping[str, Sequence[Row]]) -> bool:
    """Whether both runs change a parameter by no more than a few steps."""
    step = max((abs(change) for rows in updates.values() for change in _changes(rows, True)), default=0.0)
    return all(abs(a - b) <= FEW_STEPS * step for a, b in zip(_changes(update, False), _changes(update, True)))


def _parameter(graph: Graph, row: Row, update: Sequence[Row], golden: bool) -> Optional[Value]:
    """The value of the parameter in the forward: that of the module that holds it, or the one that is updated."""
    call = row.match.golden if golden else row.match.target
    step = graph.backward.get(call.name) if call is not None else None
    held = next((part.value for part in step.takes if part.row is row), None) if step is not None else None
    return held or next((graph.of_row.get(id(one)) for one in update if one.slot.endswith(".before")), None)


def _makers(graph: Graph) -> dict[int, list[Step]]:
    """The calls whose backward gives a value its gradient, or a part of it."""
    found: dict[int, list[Step]] = {}
    for step in graph.backward.values():
        for part in step.gives if not step.is_border else ():
            found.setdefault(id(part.value), []).append(step)
    return found


def _item(row: Optional[Row], golden: bool) -> Item:
    item = (row.golden if golden else row.target) if row is not None else None
    return item if is_tensor(item) else None


def _are_rounding(gradients: Sequence[Row], makers: Sequence[Step], golden: bool) -> bool:
    """Whether all that was added up for a gradient cancels, and the gradient, as the backward left it and as the
    optimizer received it, is no larger than the rounding of the sum. What was added up must not differ between the
    runs."""
    items = [item for row in gradients if (item := _item(row, golden)) is not None]
    if len(items) < len(gradients) or not makers:
        return False
    size, limit, total = max(count(items[0]), 1), 0.0, 0.0
    for part in (part for step in makers for part in step.takes):
        given = _item(part.row, golden) or {"shape": []}
        norm, mean = (number(given.get(key)) for key in ("Norm", "Mean"))
        if part.row is None or part.row.judgement.verdict in (WARNING, ERROR) or norm is None or mean is None:
            return False
        limit += MARGIN * epsilon(items[0]) * norm * math.sqrt(max(count(given) / size, 1.0))
        total += mean * count(given)
    norms = [number(one.get("Norm")) or 0.0 for one in items]
    return abs(total) <= limit * math.sqrt(size) and all(0.0 < norm <= limit for norm in norms)


def _changes(update: Sequence[Row], golden: bool) -> Iterator[float]:
    """By how much an update changes the maximum and the minimum."""
    items = {row.slot.rpartition(".")[2]: _item(row, golden) for row in update}
    for key in ("Max", "Min"):
        before, after = (number((items.get(side) or {}).get(key)) for side in ("before", "after"))
        if before is not None and after is not None:
            yield after - before


def _behind(update: Sequence[Row], graph: Graph, updating: Names) -> set[int]:
    """The rows of what clipping and the optimizer compute element by element from a gradient, and of its state."""
    waiting = [value for row in update if (value := graph.of_row.get(id(row))) is not None]
    seen = {id(value): value for value in waiting}
    while waiting:
        value = waiting.pop()
        steps = [*value.uses, *([value.maker] if value.maker is not None else [])]
        near = [one for step in steps if step.call.name in updating for one in _beside(value, step)]
        for one in (*_unchanged(value), *near):
            if id(one) not in seen:
                seen[id(one)] = one
                waiting.append(one)
    return {id(row) for value in seen.values() for row in value.rows}


def _unchanged(value: Value) -> Iterator[Value]:
    """The same memory, without a recorded call in between. Many views of one value are a bucket of many gradients."""
    for one, other in [(value.source, value), *((value, view) for view in value.views)]:
        if one is not None and (_is_alike(one, other) if one.item is not None else len(one.views) == 1):
            yield other if one is value else one


def _beside(value: Value, step: Step) -> Iterator[Value]:
    """The tensors of a call that belong to the same parameter: those of the same shape, in lists those at the same
    place."""
    listed = [part for part in step.takes if part.slot.count(".") > 1]
    if len(step.results) == sum(part.slot.startswith("input.0.") for part in listed):
        listed += step.results
    parts = listed or [*step.takes, *step.results]
    places = {part.slot.rpartition(".")[2] for part in parts if part.value is value}
    for part in parts if places else ():
        if part.slot.rpartition(".")[2] in places if listed else _is_alike(part.value, value):
            yield part.value
    same = [part.value for part in step.takes if part.value.memory == value.memory is not None]
    if len(set(map(id, same))) == 1:
        yield from (one for one in step.writes if one.memory == value.memory)
        yield from same


def _is_alike(one: Value, other: Value) -> bool:
    """Whether both have the same shape, and are no single numbers (a factor for all parameters)."""
    shapes = [(value.item or {}).get("shape") for value in (one, other)]
    return shapes[0] == shapes[1] and shapes[0] not in (None, [])


def _effects(held: Sequence[Value], updating: Names) -> list[Value]:
    steps = [step for value in held for step in value.uses]
    used = [step for step in steps if step.call.name not in updating and not is_derived(step.call.key)]
    return [effect for step in used for effect in step.effects]
