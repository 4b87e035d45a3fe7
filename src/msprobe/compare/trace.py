"""Introduced or propagated: follows differences through the calls of one rank and step.

A call that differs on its outputs alone introduced the difference; one whose inputs differed already passed it on. A
module that contains a differing call passes it on too: the innermost call is the one to name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Optional

from msprobe.compare import distance
from msprobe.compare.calls import BACKWARD, FORWARD, GRADS, Call, Match
from msprobe.compare.judge import is_collective
from msprobe.compare.rows import ERROR, INTRODUCED, PROPAGATED, WARNING, Row, is_tensor

Group = tuple[Match, list[Row]]
BAD = (WARNING, ERROR)


@dataclass
class Trace:
    """Where differences entered one unit (one rank in one step): indices into its groups, in execution order."""

    groups: Sequence[Group]
    weights: list[tuple[int, Row]] = field(default_factory=list)
    introduced: list[int] = field(default_factory=list)
    gradients: list[tuple[int, Row]] = field(default_factory=list)
    unmatched: list[int] = field(default_factory=list)
    propagated: int = 0

    def epoch(self, index: int) -> int:
        """How many collectives had completed before this call."""
        return sum(1 for match, _ in self.groups[:index] if match.how != "unmatched" and is_collective(match))


def bad_rows(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.verdict in BAD]


def only_requires_grad(row: Row) -> bool:
    return row.verdict == WARNING and row.reason.startswith("requires_grad")


def follow(groups: Sequence[Group]) -> Trace:
    """Sets the role of every differing row, and says where differences entered."""
    trace = Trace(groups)
    tree = _Tree(groups)
    seen = False
    for index, (match, rows) in enumerate(groups):
        if match.how == "unmatched":
            trace.unmatched.append(index)
            continue
        bad = bad_rows(rows)
        if not bad:
            continue
        numeric = [row for row in bad if not only_requires_grad(row)]
        trace.gradients += [(index, row) for row in bad if row not in numeric]
        weights = [row for row in numeric if row.slot.startswith("parameters.")]
        if weights and match.call.direction == FORWARD:
            trace.weights += [(index, row) for row in weights]
        if not numeric:
            continue
        role = _role(match, numeric, seen, tree)
        for row in numeric:
            row.role = INTRODUCED if role == INTRODUCED or row in weights else PROPAGATED
        if role == INTRODUCED:
            trace.introduced.append(index)
        else:
            trace.propagated += 1
        tree.mark(match.call)
        seen = True
    return trace


def _role(match: Match, bad: list[Row], seen: bool, tree: _Tree) -> str:
    call = match.call
    if call.kind == "module" and tree.holds_bad(call.name):
        return PROPAGATED
    if call.direction == GRADS:
        return PROPAGATED if seen else INTRODUCED
    inputs = [row for row in bad if row.is_input]
    if any(not is_tensor(row.golden) and row.target is not None and row.golden is not None for row in inputs):
        return INTRODUCED
    if inputs:
        return PROPAGATED if seen else INTRODUCED
    if call.direction == BACKWARD and tree.forward_is_bad(call):
        return PROPAGATED
    return INTRODUCED


class _Tree:
    """Which modules hold a differing call, and which forwards differ."""

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


def module_of(call: Call, groups: Sequence[Group], inside: bool) -> Optional[str]:
    """The module that a call belongs to: itself where it is one and `inside`, else the one it ran in.

    A backward belongs to the module of its forward: what encloses it in the autograd engine says little.
    """
    if call.kind in ("module", "grads") and inside:
        return call.key
    forward = call.name
    if call.direction == BACKWARD:
        forward = f"{call.key}.forward.{call.number}" if call.kind == "module" else f"{call.key}.{call.number}.forward"
    for match, _ in groups:
        if match.call.name == forward:
            parent = match.call.parent
            break
    else:
        parent = call.parent
    if parent is None:
        return None
    head, _, last = parent.rpartition(".")
    return head.rpartition(".")[0] if last.isdigit() else parent


ValueKey = tuple[object, ...]


def value_key(item: object) -> Optional[ValueKey]:
    """Equal keys: in all likelihood the same numbers, whatever the shape they are viewed in."""
    if not isinstance(item, dict) or not is_tensor(item):
        return None
    statistics = [distance.number(item.get(key)) for key in ("Max", "Min", "Mean", "Norm")]
    if None in statistics:
        return (item["md5"],) if item.get("md5") else None
    return (distance.count(item), *(f"{value:.5e}" for value in statistics))
