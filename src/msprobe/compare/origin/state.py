"""Differences of the model itself: a module that is called instead of another one, buffers that differ.

Records of calls do not name buffers; training.json has their values at the start of the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

from msprobe.compare.calls import FORWARD, Call, module_path
from msprobe.compare.measure import distance
from msprobe.compare.origin.trace import Trace
from msprobe.compare.origin.wording import Candidate
from msprobe.compare.phases import Phase
from msprobe.compare.rows import is_tensor
from msprobe.messages import Message

Buffers = Mapping[str, Mapping[str, Any]]
ROUNDING = 8.0
"""A buffer may differ by up to this many spacings of its dtype: it may be computed."""


def other_module(trace: Trace) -> Optional[tuple[int, Message]]:
    """The first call of a module that the golden run calls elsewhere, in place of a module that the target calls less
    often; and a sentence about it. A module that only has a different name in the other run does not count."""
    if not (trace.weights or trace.introduced or trace.gradients):
        return None
    made: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for match, _ in trace.groups:
        for counts, call in zip(made, (match.target, match.golden)):
            if call is not None and _is_module(call):
                counts[call.key] += 1
    ours, theirs = made
    for index, (match, _) in enumerate(trace.groups):
        target, golden = match.target, match.golden
        if target is None or golden is None or not _is_module(target) or target.key == golden.key:
            continue
        if ours[target.key] > theirs[target.key] > 0 and theirs[golden.key] > ours[golden.key]:
            if any(i < _first_inside(target.name, index, trace) for i in _forward_differences(trace)):
                return None
            return index, Message("origin.other_module", golden=golden.name, target=target.name)
    return None


def _is_module(call: Call) -> bool:
    return call.kind == "module" and call.direction == FORWARD


def _forward_differences(trace: Trace) -> Iterator[int]:
    return (index for index in trace.introduced if trace.phases[index] is Phase.FORWARD)


def _first_inside(module: str, index: int, trace: Trace) -> int:
    """The place of the first call that a module makes; modules are recorded when they return."""
    inside = {module}
    first = index
    for place in range(index - 1, -1, -1):
        call = trace.groups[place][0].target
        if call is not None and call.parent in inside:
            inside.add(call.name)
            first = place
    return first


def other_buffers(target: Sequence[Any], golden: Sequence[Any]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """The buffers and own parameters of the model that differ when the step begins, by kind and name, from the events
    in training.json."""
    ours, theirs = _buffers(target), _buffers(golden)
    return {
        name: (dict(ours[name]), dict(theirs[name]))
        for name in ours
        if name in theirs and _differs(dict(ours[name]), dict(theirs[name]))
    }


def _buffers(events: Sequence[Any]) -> Buffers:
    for event in events:
        if not isinstance(event, Mapping) or event.get("event") != "buffers":
            continue
        kinds = (("buffer", event.get("tensors")), ("parameter", event.get("parameters")))
        return {
            f"{kind} {name}": item
            for kind, tensors in kinds
            if isinstance(tensors, Mapping)
            for name, item in tensors.items()
            if isinstance(item, Mapping) and "shape" in item
        }
    return {}


def _differs(target: dict[str, Any], golden: dict[str, Any]) -> bool:
    if target.get("md5") and target.get("md5") == golden.get("md5"):
        return False
    if target.get("shape") != golden.get("shape"):
        return True
    away = distance.of_statistics(target, golden).distance
    return away is not None and away > ROUNDING * distance.epsilon(golden)


def name_buffer(
    found: Candidate, buffers: Mapping[str, tuple[dict[str, Any], dict[str, Any]]], later: Optional[int]
) -> Candidate:
    """Describes the suspect as a difference of a buffer if it shows one; otherwise returns it unchanged."""
    name = _shown(found, buffers)
    part = "" if name else _taken_in_part(found, buffers) or (_own_parameter(found, buffers) if later is None else "")
    if part:
        said = Message("state.shown", said=_differs_at(part, later), call=found.match.call.name)
        return replace(found, kind=part.partition(" ")[0], said=said)
    if not name:
        unexplained = found.phase is Phase.FORWARD and found.kind in ("input", "wiring")
        return replace(found, evidence=(*found.evidence, _first_of(buffers))) if unexplained else found
    call = found.match.call
    said = _differs_at(name, later)
    if call.kind != "module":
        said = Message("state.given", said=said, call=call.name)
    if len(buffers) > 1:
        said = Message("state.more", said=said, number=len(buffers))
    return replace(found, kind=name.partition(" ")[0], said=said)


def _differs_at(name: str, later: Optional[int]) -> Message:
    if later is None:
        return Message("state.differs", what=state_text(name))
    return Message("state.later", what=state_text(name), step=later)


def state_text(name: str) -> Message:
    """`buffer x`, `parameter x`: kind and name, as `other_buffers` gives them."""
    kind, _, rest = name.partition(" ")
    return Message("state.buffer" if kind == "buffer" else "state.parameter", name=rest)


def _own_parameter(found: Candidate, buffers: Mapping[str, object]) -> str:
    """The parameter of the model itself that differs, if it is the only one and no recorded call explains the
    suspect."""
    own = [name for name in buffers if name.startswith("parameter ")]
    return own[0] if len(own) == 1 and found.kind in ("input", "wiring") and found.phase is not Phase.AFTER else ""


def _taken_in_part(found: Candidate, buffers: Mapping[str, tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """The buffer, or parameter of the model, of which an input may be a slice in both runs, if there is exactly one."""
    row = found.row
    if found.phase is not Phase.FORWARD or found.kind != "input" or row is None or not row.is_input:
        return ""
    fitting = [
        name
        for name, (ours, theirs) in buffers.items()
        if may_be_part(row.target, ours) and may_be_part(row.golden, theirs)
    ]
    return fitting[0] if len(fitting) == 1 else ""


def may_be_part(item: Optional[dict[str, Any]], whole: dict[str, Any]) -> bool:
    """Whether it has fewer elements of the same dtype, all in the range of the complete tensor."""
    if item is None or not is_tensor(item) or item.get("dtype") != whole.get("dtype"):
        return False
    low, high, least, most = (distance.number(one.get(key)) for one in (item, whole) for key in ("Min", "Max"))
    if low is None or high is None or least is None or most is None:
        return False
    return 1 < distance.count(item) < distance.count(whole) and least <= low <= high <= most


def _first_of(buffers: Mapping[str, object]) -> Message:
    first = state_text(next(iter(buffers)))
    if len(buffers) == 1:
        return Message("state.begins", what=first)
    return Message("state.several_begin", number=len(buffers), what=first)


def _shown(found: Candidate, buffers: Mapping[str, tuple[dict[str, Any], dict[str, Any]]]) -> str:
    row, call = found.row, found.match.call
    if found.phase is not Phase.FORWARD or row is None:
        return ""
    if found.kind in ("input", "wiring") and row.is_input:
        for name, (ours, theirs) in buffers.items():
            if distance.is_repetition(row.target, ours) and distance.is_repetition(row.golden, theirs):
                return name
    if found.kind == "call" and call.kind == "module":
        owner = module_path(call.key)
        return next((name for name in buffers if name.partition(" ")[2].rpartition(".")[0] == owner), "")
    return ""
