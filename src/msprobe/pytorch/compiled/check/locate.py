"""Finds the node of a region whose compiled result is wrong.

Forward: the graph is compiled once more with every value as an output; the first wrong value names the node. Backward:
the same with the gradient of every value, from the end. Then the node is compiled alone, and, if it is right alone,
with more and more of the nodes before it. A fault that disappears when values are outputs depends on how the compiler
fuses them: then prefixes of the graph are compiled, by bisection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

import torch
import torch.fx

from msprobe.pytorch.compiled.check import graphs
from msprobe.pytorch.compiled.check.judge import Verdict, judge
from msprobe.pytorch.compiled.check.measure import Call, Compiler, Measured, Runs, measure, same_random_numbers
from msprobe.pytorch.compiled.check.runs import Eager, Incoming, Reference, copy_inputs, widen, without_warnings

_CANDIDATES = 4


@dataclass(frozen=True)
class Located:
    """The smallest part of a region that is wrong. `node` names it; the part has more nodes if it is right alone."""

    node: str
    backward: bool
    graph: torch.fx.GraphModule
    call: Call
    verdict: Verdict

    @property
    def nodes(self) -> int:
        return len(graphs.calls_of(self.graph))


class Search:
    """Searches one region, for one of its calls."""

    def __init__(self, graph: torch.fx.GraphModule, compiler: Compiler, call: Call, runs: Runs) -> None:
        self._graph = graph
        self._compiler = compiler
        self._call = call
        self._runs = runs
        self._values: dict[str, Any] = {}
        self._earlier: list[dict[str, Any]] = []
        self._gradients: dict[str, Any] = {}  # of each node's result, in eager code
        self._random: dict[str, Any] = {}
        self._views: set[str] = set()
        self._has_writes = any(graphs.writes(node) for node in graph.graph.nodes)

    def find(self, measured: Measured) -> Optional[Located]:
        """The part that is wrong, or None if only the complete region is."""
        self._collect_values()
        forward = [verdict for verdict in measured.wrong if not verdict.name.startswith("gradient of")]
        candidates = list(self._wrong_values() if forward else self._wrong_gradients())
        for name in candidates[:_CANDIDATES]:
            found = self._try([name], name)
            if found is not None:
                return found
        start = candidates[0] if candidates else self._bisect(bool(forward))
        if start is None:
            return None
        number, total = 2, len(graphs.calls_of(self._graph))
        while number < 2 * total:
            found = self._try(graphs.nodes_before(self._graph, start, number), start)
            if found is not None:
                return found
            number *= 2
        return None

    # What eager code computes.

    def _collect_values(self) -> None:
        self._values = self._values_of(self._call.inputs)
        self._earlier = [self._values_of(inputs) for inputs in self._call.earlier]
        self._runs.add(self._graph)

    def _values_of(self, inputs: Sequence[Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        torch.set_rng_state(self._call.state)
        copied = copy_inputs(inputs)
        with without_warnings():
            eager = _Keeping(self._graph, values)
            eager.run(*copied)
        self._random, self._views = eager.random, eager.views
        for node, value in zip(graphs.inputs_of(self._graph), copied):
            values[node.name] = value
        return values

    # Forward.

    def _wrong_values(self) -> Iterator[str]:
        names = [
            node.name for node in graphs.calls_of(self._graph) if isinstance(self._values.get(node.name), torch.Tensor)
        ]
        compiled = self._compiler(graphs.with_values(self._graph, names, self._views))
        with without_warnings(), same_random_numbers():
            for inputs in self._call.earlier:
                compiled(*copy_inputs(inputs))
            torch.set_rng_state(self._call.state)
            _, found = compiled(*copy_inputs(self._call.inputs))
        reference: dict[str, Any] = {}
        torch.set_rng_state(self._call.state)
        with without_warnings():
            wide = Reference(widen(self._graph), self._random, reference)
            wide.run_wide(*copy_inputs(self._call.inputs, wide=True))
        self._runs.add(self._graph)
        self._runs.add(self._graph)
        for name, value in zip(names, found):
            wide_value = reference.get(name)
            if isinstance(wide_value, torch.Tensor) and judge(name, value, self._values[name], wide_value).wrong:
                yield name

    # Backward.

    def _wrong_gradients(self) -> Iterator[str]:
        """The nodes that get a right gradient and pass on a wrong one, the last node first."""
        names = [node.name for node in graphs.calls_of(self._graph) if self._can_be_tapped(node)]
        tapped = graphs.with_taps(self._graph, names)

        def with_zeros(inputs: Sequence[Any], values: dict[str, Any]) -> list[Any]:
            return [*inputs, *(torch.zeros_like(values[name]).requires_grad_() for name in names)]

        earlier = [with_zeros(*both) for both in zip(self._call.earlier, self._earlier)]
        call = replace(self._call, inputs=with_zeros(self._call.inputs, self._values), earlier=earlier)
        found = measure(tapped, self._compiler(tapped), call, self._runs)
        if self._call.incoming is not None:
            taps = {name: f"gradient of tap_{name}" for name in names}
            self._gradients = {name: found.eager[tap] for name, tap in taps.items() if tap in found.eager}
        wrong = {verdict.name.removeprefix("gradient of tap_") for verdict in found.wrong}
        known = set(names)
        inputs = {node.name: graphs.readable_name(str(node.target)) for node in graphs.inputs_of(self._graph)}
        at_fault = []
        for node in self._graph.graph.nodes:
            name = node.name if node.name in known else f"gradient of {inputs.get(node.name)}"
            if name in wrong:
                at_fault += [user.name for user in node.users if user.op in graphs.CALLS and user.name not in wrong]
        yield from reversed(graphs.order_of(self._graph, at_fault))

    def _can_be_tapped(self, node: torch.fx.Node) -> bool:
        value = self._values.get(node.name)
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return False
        if not self._has_writes:
            return True
        return not graphs.writes(node) and not any(graphs.writes(user) for user in node.users)

    # One part alone.

    def _try(self, names: Sequence[str], node: str) -> Optional[Located]:
        if node in self._random:
            return None  # the backend may draw other random numbers
        part, outside = graphs.cut_out(self._graph, names, self._values, self._views)
        earlier = [[values[name] for name in outside] for values in self._earlier]
        incoming = self._incoming(graphs.results_of(part))
        call = Call([self._values[name] for name in outside], self._call.state, earlier, incoming)
        found = measure(part, self._compiler(part), call, self._runs)
        worst = found.worst
        if worst is None:
            return None
        backward = all(verdict.name.startswith("gradient of") for verdict in found.wrong)
        return Located(node, backward, part, call, worst)

    def _incoming(self, nodes: Sequence[str]) -> Incoming:
        """The gradients that eager code gives to the results of a part; None if one of them is not known."""
        values = [(name, self._values.get(name)) for name in nodes]
        tensors = [(name, value) for name, value in values if isinstance(value, torch.Tensor)]
        known = all(name in self._gradients or not value.requires_grad for name, value in tensors)
        if not self._gradients or not known or any(isinstance(value, (tuple, list)) for _, value in values):
            return None
        return [self._gradients.get(name) for name, _ in tensors]

    # Fusion.

    def _bisect(self, forward: bool) -> Optional[str]:
        """The first node for which the graph up to this node is wrong; None if no prefix is wrong."""
        names = [
            node.name
            for node in graphs.calls_of(self._graph)
            if isinstance(self._values.get(node.name), torch.Tensor) and self._values[node.name].is_floating_point()
        ]
        low, high, found = 0, len(names) - 1, None
        while low <= high:
            middle = (low + high) // 2
            part = graphs.prefix(self._graph, names[middle])
            call = replace(self._call, incoming=self._incoming([names[middle]]))
            measured = measure(part, self._compiler(part), call, self._runs)
            if any(verdict.name.startswith("gradient of") != forward for verdict in measured.wrong):
                found, high = names[middle], middle - 1
            else:
                low = middle + 1
        return found


class _Keeping(Eager):
    """Keeps a copy of each result, because a later node may overwrite it, and notes which results are views."""

    def __init__(self, graph: torch.fx.GraphModule, values: dict[str, Any]) -> None:
        super().__init__(graph)
        self._kept = values
        self.views: set[str] = set()

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        if n.op in graphs.CALLS:
            self._kept[n.name] = result
            if isinstance(result, torch.Tensor):
                if result._is_view() and not graphs.writes(n):
                    self.views.add(n.name)
                copied = torch._prims_common.clone_preserve_strides(result.detach())
                self._kept[n.name] = copied.requires_grad_(result.requires_grad)
        return result
