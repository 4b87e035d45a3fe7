"""Finds calls that only one run makes and whose results are not used: what a script logs, an evaluation, averages of
weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Optional

from msprobe.compare.calls import FORWARD, Call
from msprobe.compare.judge.effects import results
from msprobe.compare.measure.distance import ValueKey, count, value_key
from msprobe.compare.phases import Phase
from msprobe.compare.rows import Group, Row, is_tensor, slots

_WRITES = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__"}
_KEEPS_STATISTICS = {"batch_norm", "instance_norm", "native_batch_norm"}
_READS = ("Tensor.", "Torch.", "Functional.")


def writes(call: Call) -> bool:
    """Whether the call may change memory that other calls read. Unknown calls (collectives, NPU kernels) may."""
    word = call.key.rpartition(".")[2]
    if call.kind == "module":
        return "BatchNorm" in word or "InstanceNorm" in word
    if word in _KEEPS_STATISTICS:
        return True
    return not call.key.startswith(_READS) or word in _WRITES or (word.endswith("_") and not word.startswith("__"))


def find_logged(groups: Sequence[Group], phases: Sequence[Phase]) -> set[int]:
    """The places of calls after the backward that only one run makes and that change nothing: they end in a number that
    no call uses, or they are a forward without gradients (an evaluation), or averages of the weights."""
    tail = len(groups)
    while tail and phases[tail - 1] is Phase.AFTER:
        tail -= 1
    alone = [place for place in range(tail, len(groups)) if groups[place][0].how == "unmatched"]
    if not alone:
        return set()
    own = _writes_to_own_memory(groups, tail, alone)
    parents = {groups[place][0].call.parent for place in alone}
    found: set[int] = set()
    taken: set[ValueKey] = set()
    inside: set[str] = set()
    for place in reversed(alone):
        match, rows = groups[place]
        call = match.call
        if call.direction != FORWARD:
            continue
        if (call.kind == "module" or call.parent in inside) and not _has_gradient(rows):
            known = call.name in parents if call.kind == "module" else _only_reads(call) or place in own
            harmless = not writes(call) or known
        else:
            harmless = place in own or _is_logged(call, rows, taken)
        if harmless:
            found.add(place)
            inside.update([call.name] if call.kind == "module" else [])
            taken.update(_keys(rows, True))
    return found


def _writes_to_own_memory(groups: Sequence[Group], tail: int, alone: Sequence[int]) -> set[int]:
    """The places of calls of one run that write what they made themselves, or an average of the weights: memory of no
    weight that is changed, in one call or more, until the updated weight is added to it."""
    held, updated = _memory_of_the_model(groups, tail)
    found: set[int] = set()
    made: set[ValueKey] = set()
    begun: dict[ValueKey, list[int]] = {}
    for place in alone:
        call, rows = groups[place][0].call, groups[place][1]
        given, made_now = list(_keys(rows, True)), list(_keys(rows, False))
        if call.kind != "api" or call.direction != FORWARD or not given:
            continue
        if not writes(call) or given[0] in made:
            found.update([place] if writes(call) else [])
            made.update(made_now)
        elif held is not None and (given[0] in begun or given[0] not in held or _is_zero(rows[0])):
            changes = [*begun.pop(given[0], []), place]
            if updated.intersection(given[1:]):
                found.update(changes)
                made.update(made_now)
            else:
                begun.update((key, changes) for key in made_now)
    return found


def _memory_of_the_model(groups: Sequence[Group], tail: int) -> tuple[Optional[set[ValueKey]], set[ValueKey]]:
    """What weights, gradients and states hold after the step, known from what the optimizer's calls gave; None where
    these give no result (lists, fused kernels). And what was updated."""
    held: set[ValueKey] = set()
    replaced: set[ValueKey] = set()
    updated: set[ValueKey] = set()
    listed = False
    for match, rows in groups[:tail]:
        if match.call.kind in ("module", "grads"):
            held.update(key for key in map(_weight, rows) if key is not None)
    for match, rows in groups[tail:]:
        if match.how != "unmatched" and match.call.kind == "api" and writes(match.call):
            listed |= match.call.key.rpartition(".")[2].startswith(("_foreach_", "_fused_"))
            replaced.update(list(_keys(rows, True))[:1])
            updated.update(_keys(rows, False))
    return (None if listed else (held - replaced) | updated), updated


def _is_zero(row: Row) -> bool:
    """Zeros look like any other zeros: biases that no step has changed yet, and their averages."""
    return (row.golden or row.target or {}).get("Norm") == 0.0


def _weight(row: Row) -> Optional[ValueKey]:
    """A weight, or the gradient of one."""
    return value_key(row.golden or row.target) if row.slot.startswith("parameters") else None


def _keys(rows: Sequence[Row], is_input: bool) -> Iterator[ValueKey]:
    return (key for key in map(value_key, _given(rows, is_input)) if key is not None)


def _has_gradient(rows: Sequence[Row]) -> bool:
    return any(item.get("requires_grad") for item in _given(rows, False))


def _only_reads(call: Call) -> bool:
    """A normalisation that keeps statistics of what it is given only reads them in an evaluation."""
    if call.key.rpartition(".")[2] not in _KEEPS_STATISTICS:
        return False
    given = {slot: item for slot, item in slots(call) if item is not None}
    return given.get("input.training", given.get("input.5", {})).get("value") is False


def _is_logged(call: Call, rows: Sequence[Row], taken: set[ValueKey]) -> bool:
    """Whether its result is one number, its inputs are single numbers, or such a call uses its result."""
    if call.kind != "api" or writes(call):
        return False
    made, given = _given(rows, False), _given(rows, True)
    if all(count(item) <= 1 for item in made) or (given and all(count(item) <= 1 for item in given)):
        return True
    return all(value_key(item) in taken for item in made)


def _given(rows: Sequence[Row], is_input: bool) -> list[dict[str, Any]]:
    chosen = [row for row in rows if row.is_input] if is_input else results(rows)
    items = [row.golden or row.target for row in chosen]
    return [item for item in items if item is not None and is_tensor(item)]
