"""Which operator of the graph a file belongs to.

Names do not always tell. MindSpore (seen on 2.10, CPU) numbers operators once when it writes the graph and
again when it runs: the graph's `Conv2DBackpropFilter-op1` is `…-op0` in the file names, and `Mul-op0` and
`Mul-op2` may have changed places. What stays is the scope, the type, and that the second numbering follows
the order in which the graph lists its nodes, on through all graphs of a rank. So both readings are tried for
each graph, by name and by that order, and the one that explains more files with fewer contradictions (data
types that differ, a result older than what it was made from) is taken. Where nothing speaks for either, as in a
dump of one chosen operator, it is the order on CPU, where it has been seen, and the name elsewhere.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Optional

from msprobe.graphdump.files.datatypes import type_named
from msprobe.graphdump.files.names import as_in_file
from msprobe.graphdump.graphs.ir import NOT_EXECUTED, Graph, Node

_NUMBERED = re.compile(r"(?P<base>.*)-op(?P<number>\d+)")


@dataclass
class Seen:
    """An operator as the files of one graph show it: its type, its slots' data types, its first timestamp."""

    type: str
    time: int
    dtypes: dict[tuple[str, int], str] = field(default_factory=dict)


Links = dict[str, Node]


def executed(graph: Graph, order: Optional[Iterable[str]]) -> list[Node]:
    """The nodes that run a kernel, in the order in which the graph lists them."""
    if order is not None:
        wanted = set(order)
        return [node for node in graph.nodes if node.full_name in wanted]
    return [node for node in graph.nodes if node.type not in NOT_EXECUTED]


def match(
    graphs: Mapping[int, Graph],
    nodes: Mapping[int, list[Node]],
    seen: Mapping[int, Mapping[str, Seen]],
    on_cpu: bool,
) -> dict[int, tuple[Links, str]]:
    """For each graph of one rank: file spelling to node, and how it was found ("name" or "order")."""
    counted: dict[str, int] = defaultdict(int)
    result: dict[int, tuple[Links, str]] = {}
    for number in sorted(graphs):
        files = seen.get(number, {})
        named = _by_name(nodes[number], files)
        ordered = _by_order(nodes[number], files, counted)
        if _follows_order(graphs[number], ordered, named, files, on_cpu):
            result[number] = (ordered, "order")
        else:
            result[number] = (named, "name")
        for node in nodes[number]:
            counted[_split(as_in_file(node.full_name))[0]] += 1
    return result


def _follows_order(graph: Graph, ordered: Links, named: Links, files: Mapping[str, Seen], on_cpu: bool) -> bool:
    if ordered == named:
        return False
    if len(ordered) != len(named):
        return len(ordered) > len(named)
    difference = _contradictions(graph, ordered, files) - _contradictions(graph, named, files)
    return difference < 0 or (difference == 0 and on_cpu)


def _split(name: str) -> tuple[str, int]:
    match = _NUMBERED.fullmatch(name)
    return (match["base"], int(match["number"])) if match else (name, 0)


def _by_name(nodes: list[Node], files: Mapping[str, Seen]) -> Links:
    """Names as in the graph; some dumps put only the last part of the scope into the file name."""
    whole = {as_in_file(node.full_name): node for node in nodes}
    last: dict[str, Optional[Node]] = {}
    for node in nodes:
        key = as_in_file(node.full_name.rsplit("/", 1)[-1])
        last[key] = None if key in last else node
    links = {}
    for name in files:
        node_found = whole.get(name) or last.get(name)
        if node_found is not None:
            links[name] = node_found
    return links


def _by_order(nodes: list[Node], files: Mapping[str, Seen], counted: Mapping[str, int]) -> Links:
    """The n-th number of a scope and type is the n-th node of it. Where all of a graph's are there, their
    order alone decides; in a partial dump the number does, counted on from the graphs before."""
    groups: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        groups[_split(as_in_file(node.full_name))[0]].append(node)
    numbered: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for name in files:
        base, number = _split(name)
        numbered[base].append((number, name))
    links: Links = {}
    for base, found in numbered.items():
        group = groups.get(base, [])
        found.sort()
        if len(found) == len(group):
            links.update((name, node) for (_, name), node in zip(found, group))
        else:
            for number, name in found:
                position = number - counted.get(base, 0)
                if 0 <= position < len(group):
                    links[name] = group[position]
    return links


def _contradictions(graph: Graph, links: Links, files: Mapping[str, Seen]) -> int:
    times = {node.key: files[name].time for name, node in links.items()}
    wrong = 0
    for name, node in links.items():
        wrong += node.type != files[name].type
        wrong += sum(not _can_be(node, slot, dtype) for slot, dtype in files[name].dtypes.items())
        for key in node.inputs:
            source = graph.producer(key)
            if source is not None and times.get(source.key, 0) > times[node.key]:
                wrong += 1
    return wrong


def _can_be(node: Node, slot: tuple[str, int], dtype: str) -> bool:
    """Whether the graph allows this data type there; what either side does not say is allowed."""
    io, index = slot
    said = node.signature
    sides = (said.host_inputs, said.device_inputs) if io == "input" else (said.host_outputs, said.device_outputs)
    declared = {type_named(side[index].dtype) for side in sides if index < len(side)} - {None}
    actual = type_named(dtype)
    return not declared or actual is None or actual in declared
