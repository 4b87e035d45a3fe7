"""Introduced or propagated: follows differences through the calls of one rank and step.

A call introduced the difference if only its outputs differ; it passed the difference on if its inputs differ too. A
module that contains a differing call also passes it on: the answer names the innermost call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from msprobe.compare.calls import BACKWARD, FORWARD, GRADS, Call, Match, forward_name
from msprobe.compare.excuses import StepFacts
from msprobe.compare.measure.distance import value_key
from msprobe.compare.phases import Phase, Stacks, phase_by_stack, phases_of
from msprobe.compare.reasons import Kind
from msprobe.compare.rows import ERROR, INTRODUCED, PASS, PROPAGATED, WARNING, Group, Row, is_tensor
from msprobe.dump.collectives import is_collective

BAD = (WARNING, ERROR)


@dataclass
class Trace:
    """Where differences entered one unit (one rank in one step): indices into its groups, in execution order.

    `roles` says of each differing row, by its id, whether it introduced a difference or passed one on.
    """

    groups: Sequence[Group]
    phases: Sequence[Phase]
    weights: list[tuple[int, Row]] = field(default_factory=list)
    introduced: list[int] = field(default_factory=list)
    gradients: list[tuple[int, Row]] = field(default_factory=list)
    unmatched: list[int] = field(default_factory=list)
    propagated: int = 0
    roles: dict[int, str] = field(default_factory=dict)
    stacks: Stacks = ({}, {})
    facts: Optional[StepFacts] = None

    def epoch(self, index: int) -> int:
        """How many collectives had completed before this call."""
        return sum(1 for match, _ in self.groups[:index] if match.how != "unmatched" and is_collective(match.call.key))

    def set_role(self, rows: Iterable[Row], role: str) -> None:
        for row in rows:
            self.roles[id(row)] = role


def _is_weight(row: Row) -> bool:
    return row.slot.startswith("parameters.")


def bad_rows(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.verdict in BAD]


def follow(groups: Sequence[Group], stacks: Stacks = ({}, {}), facts: Optional[StepFacts] = None) -> Trace:
    """Finds where differences entered, and the role of every differing row."""
    trace = Trace(groups, phases_of(groups), stacks=stacks, facts=facts)
    phases = list(trace.phases)
    tree = _Tree(groups)
    seen: set[Phase] = set()
    agreed: set[tuple[str, str]] = set()
    for index, (match, rows) in enumerate(groups):
        if match.how == "unmatched":
            trace.unmatched.append(index)
            continue
        call = match.call
        if call.kind == "module" and call.direction == FORWARD:
            agreed.update((call.key, row.slot) for row in rows if row.verdict == PASS and _is_weight(row))
        bad = bad_rows(rows)
        if not bad:
            continue
        if phases[index] is Phase.FORWARD:
            phases[index] = phase_by_stack(match, stacks)
        numeric = [row for row in bad if row.why.kind is not Kind.GRADIENT]
        if phases[index] is Phase.FORWARD and len(numeric) < len(bad):
            trace.gradients += [(index, row) for row in bad if row.why.kind is Kind.GRADIENT]
        # If a weight agreed at an earlier call of the module in the same step, it was updated since then.
        weights = [row for row in numeric if _is_weight(row) and (call.key, row.slot) not in agreed]
        if weights and phases[index] is Phase.AFTER and _has_begun(trace, phases, weights):
            weights = []  # of a moving average, first used after its update
        if weights and call.direction == FORWARD:
            trace.weights += [(index, row) for row in weights]
        if not numeric:
            continue
        role = _role(match, numeric, phases[index], seen, tree)
        trace.set_role(numeric, role)
        trace.set_role(weights, INTRODUCED)
        if role == INTRODUCED:
            trace.introduced.append(index)
        else:
            trace.propagated += 1
        tree.mark(call)
        seen.add(phases[index])
    trace.phases = phases
    return trace


def _has_begun(trace: Trace, phases: Sequence[Phase], weights: Sequence[Row]) -> bool:
    """Whether a difference began before the first use of weights after the backward. A call after the backward that
    only received a different tensor may have received these weights; their memory shows whether it did."""
    held = _memory(weights, trace)
    for index in trace.introduced:
        received = [row for row in bad_rows(trace.groups[index][1]) if row.is_input and is_tensor(row.golden)]
        given = _memory(received, trace)
        if phases[index] is not Phase.AFTER or not received or (held and given and not held & given):
            return True
    return bool(trace.gradients)


def _memory(rows: Sequence[Row], trace: Trace) -> set[object]:
    """The memory of these tensors in the target, as far as it was recorded."""
    graph = trace.facts.graphs[0] if trace.facts is not None else None
    values = [graph.of_row.get(id(row)) for row in rows] if graph is not None else []
    return {value.memory for value in values if value is not None and value.memory is not None}


def _role(match: Match, bad: list[Row], phase: Phase, seen: set[Phase], tree: _Tree) -> str:
    call = match.call
    if call.kind == "module" and tree.holds_bad(call.name):
        return PROPAGATED
    if call.direction == GRADS:
        return PROPAGATED if seen else INTRODUCED
    inputs = [row for row in bad if row.is_input]
    given = any(not is_tensor(row.golden) and row.target is not None and row.golden is not None for row in inputs)
    if phase is Phase.AFTER:
        # Clipping and the optimizer use gradients and states that are not arguments: they pass on differences.
        earlier = any(other < phase for other in seen)
        return PROPAGATED if earlier or (phase in seen and not given) else INTRODUCED
    if given:
        return INTRODUCED
    if inputs:
        return PROPAGATED if seen else INTRODUCED
    if call.direction == BACKWARD and tree.forward_is_bad(call):
        return PROPAGATED
    return INTRODUCED


class _Tree:
    """Which modules contain a differing call, and which forwards differ."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._parent = {match.call.name: match.call.parent for match, _ in groups}
        self._modules: set[str] = set()
        self._forward: set[tuple[str, int]] = set()

    def mark(self, call: Call) -> None:
        if call.direction == FORWARD:
            self._forward.add((call.key, call.number))
        name = call.parent
        while name is not None and name not in self._modules:
            self._modules.add(name)
            name = self._parent.get(name)

    def holds_bad(self, module: str) -> bool:
        return module in self._modules

    def forward_is_bad(self, call: Call) -> bool:
        return (call.key, call.number) in self._forward


def module_of(call: Call, groups: Sequence[Group], given: Optional[Row] = None) -> Optional[str]:
    """The module whose code has the fault: the call itself if it is a module, else the module around it.

    If the call was `given` a wrong input, a module that only passed it on does not have the fault either: it is the
    next outer module whose own inputs agree, or, if the model itself passed it, the outermost module that received it.
    A backward belongs to the module of its forward: the modules around it in the autograd engine say little. If a
    gradient was changed on its way into a module, the fault is in that module if it has its own code, that is, makes
    more than one call; for a single layer it is in the module that calls the layer.
    """
    known = _of_side(call, groups)
    if call.kind in ("module", "grads") and given is None:
        return call.key
    parent = call.parent
    if call.direction == BACKWARD and forward_name(call) in known:
        parent = known[forward_name(call)][0].parent
    if given is None:
        return _module_key(parent)
    key = value_key(given.golden)
    received = call.key if call.kind == "module" else None
    while parent is not None and parent in known:
        outer = known[parent][0]
        name = f"{outer.key}.{call.direction}.{outer.number}"
        inputs = [row for row in known.get(name, (outer, []))[1] if row.slot.startswith("input.")]
        if not any(value_key(row.golden) == key for row in bad_rows(inputs)):
            break
        received = outer.key
        parent = outer.parent
    if call.direction == BACKWARD and received is not None and _has_own_code(received, known):
        return received
    return _module_key(parent) or received


def _has_own_code(module: str, known: Mapping[str, tuple[Call, list[Row]]]) -> bool:
    """Its forward makes more than one call: a layer is one call."""
    made = Counter(one.parent for one, _ in known.values() if one.direction == FORWARD)
    return any(count > 1 and _module_key(name) == module for name, count in made.items())


def _of_side(call: Call, groups: Sequence[Group]) -> dict[str, tuple[Call, list[Row]]]:
    """The calls of the run that this call belongs to, by name."""
    golden = any(match.golden is call for match, _ in groups)
    sides = [(match.golden if golden else match.target, rows) for match, rows in groups]
    return {one.name: (one, rows) for one, rows in sides if one is not None}


def _module_key(name: Optional[str]) -> Optional[str]:
    """`Module.a.Block.forward.0` -> `Module.a.Block`."""
    if name is None:
        return None
    head, _, last = name.rpartition(".")
    return head.rpartition(".")[0] if last.isdigit() else name
