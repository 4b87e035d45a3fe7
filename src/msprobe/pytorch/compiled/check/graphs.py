"""Variants and parts of a captured graph: all values as outputs, taps for gradients, a prefix, a few nodes alone."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
import torch.fx

from msprobe.pytorch.compiled.check.runs import _copy_graph

CALLS = ("call_function", "call_method", "call_module")
_COPY = "copy_of_"
_PARTS = re.compile(r"_modules_|_parameters_|_buffers_")
_WRITING_OPERATORS = frozenset(("iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "imatmul", "setitem"))


def inputs_of(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def calls_of(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in graph.graph.nodes if node.op in CALLS and not node.name.startswith(_COPY)]


def results_of(graph: torch.fx.GraphModule) -> list[str]:
    """The nodes that a part returns."""
    end = next(node for node in graph.graph.nodes if node.op == "output")
    return [node.name.removeprefix(_COPY) for node in end.all_input_nodes]


def readable_name(placeholder: str) -> str:
    """Shortens names: `L_self_modules_layers_modules_0_parameters_weight_` is the input `layers.0.weight`."""
    parts = _PARTS.split(placeholder)
    if len(parts) > 1:
        return ".".join(parts[1:]).rstrip("_")
    return placeholder.removeprefix("L_").rstrip("_") or placeholder


def input_names(graph: torch.fx.GraphModule) -> list[str]:
    return [readable_name(str(node.target)) for node in inputs_of(graph)]


def writes(node: torch.fx.Node) -> bool:
    """Whether a node changes one of its inputs."""
    if node.op == "call_method":
        name = str(node.target)
        return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
    name = getattr(node.target, "__name__", "")
    return (
        name in _WRITING_OPERATORS
        or (name.endswith("_") and not name.endswith("__"))
        or "out" in node.kwargs
        or node.kwargs.get("inplace") is True
    )


def with_values(graph: torch.fx.GraphModule, names: Sequence[str], views: Collection[str] = ()) -> torch.fx.GraphModule:
    """The graph with more outputs: after its own, the results of these nodes."""
    copied = _copy_graph(graph)
    nodes = {node.name: node for node in copied.nodes}
    end = next(node for node in copied.nodes if node.op == "output")
    with copied.inserting_before(end):
        results = tuple(_result(copied, nodes[name], name in views) for name in names)
    end.args = ((end.args[0], results),)
    return _module(graph, copied)


def _result(copied: torch.fx.Graph, node: torch.fx.Node, is_view: bool) -> torch.fx.Node:
    """A view as an output: torch makes views of inputs itself, and the backend would not be asked. A copy asks it."""
    if not is_view:
        return node
    return copied.create_node("call_function", torch.clone, (node,), name=f"{_COPY}{node.name}")


def with_taps(graph: torch.fx.GraphModule, names: Sequence[str]) -> torch.fx.GraphModule:
    """The graph with one more input per node, added to its result: zeros, whose gradient is that of the result."""
    copied = _copy_graph(graph)
    nodes = {node.name: node for node in copied.nodes}
    last = [node for node in copied.nodes if node.op == "placeholder"][-1]
    taps = {}
    for name in names:
        with copied.inserting_after(last):
            last = taps[name] = copied.placeholder(f"tap_{name}")
    for name in names:
        node = nodes[name]
        with copied.inserting_after(node):
            added = copied.call_function(torch.add, (node, taps[name]))
        node.replace_all_uses_with(added, delete_user_cb=lambda user, added=added: user is not added)
    return _module(graph, copied)


def prefix(graph: torch.fx.GraphModule, name: str) -> torch.fx.GraphModule:
    """The part of the graph that computes one node. It keeps all inputs."""
    copied = _copy_graph(graph)
    nodes = {node.name: node for node in copied.nodes}
    end = next(node for node in copied.nodes if node.op == "output")
    end.args = ((nodes[name],),)
    if not any(writes(node) for node in copied.nodes):
        copied.eliminate_dead_code()
    return _module(graph, copied)


def nodes_before(graph: torch.fx.GraphModule, name: str, number: int) -> list[str]:
    """The last `number` nodes that the result of a node depends on, itself included, in the order of the graph."""
    order = {node.name: place for place, node in enumerate(graph.graph.nodes)}
    nodes = {node.name: node for node in graph.graph.nodes}
    found: set[str] = set()
    waiting = [nodes[name]]
    while waiting and len(found) < number:
        waiting.sort(key=lambda node: order[node.name])
        node = waiting.pop()
        if node.name in found or node.op not in CALLS:
            continue
        found.add(node.name)
        waiting.extend(node.all_input_nodes)
    return sorted(found, key=order.__getitem__)


def cut_out(
    graph: torch.fx.GraphModule, names: Collection[str], values: dict[str, Any], views: Collection[str] = ()
) -> tuple[torch.fx.GraphModule, list[str]]:
    """Some nodes as a separate graph, and the nodes of the complete graph that are its inputs.

    Only tensors and numbers can be inputs: a node that produces anything else becomes part of the separate graph.
    """
    wanted = _with_makers(graph, set(names), values)
    copied = torch.fx.Graph()
    made: dict[torch.fx.Node, Any] = {}
    outside: list[str] = []
    for node in graph.graph.nodes:
        if node.op in CALLS and node.name in wanted:
            for source in node.all_input_nodes:
                if source not in made and source.op != "get_attr":
                    outside.append(source.name)
                    made[source] = None
    nodes = {node.name: node for node in graph.graph.nodes}
    inside = [node for node in graph.graph.nodes if node.op in CALLS and node.name in wanted]
    outside = [name for name in outside if name not in wanted]
    for name in outside:
        made[nodes[name]] = copied.placeholder(name)
    for node in inside:
        for source in node.all_input_nodes:
            if source.op == "get_attr" and made.get(source) is None:
                made[source] = copied.node_copy(source, made.__getitem__)
        made[node] = copied.node_copy(node, made.__getitem__)
    ends = [node for node in inside if not all(user in inside for user in node.users) or not node.users]
    copied.output(tuple(_result(copied, made[node], node.name in views) for node in ends or inside[-1:]))
    return _module(graph, copied), outside


def _with_makers(graph: torch.fx.GraphModule, wanted: set[str], values: dict[str, Any]) -> set[str]:
    nodes = {node.name: node for node in graph.graph.nodes}
    waiting = list(wanted)
    while waiting:
        for source in nodes[waiting.pop()].all_input_nodes:
            given = values.get(source.name)
            if source.op in CALLS and source.name not in wanted and not isinstance(given, (torch.Tensor, int, float)):
                wanted.add(source.name)
                waiting.append(source.name)
    return wanted


def order_of(graph: torch.fx.GraphModule, names: Iterable[str]) -> list[str]:
    wanted = set(names)
    return [node.name for node in graph.graph.nodes if node.name in wanted]


def _module(graph: torch.fx.GraphModule, nodes: torch.fx.Graph) -> torch.fx.GraphModule:
    nodes.lint()
    return torch.fx.GraphModule(graph, nodes)
