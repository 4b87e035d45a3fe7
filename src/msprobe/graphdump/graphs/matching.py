"""Matches files to the operators of the graph.

The name alone is not enough. MindSpore (seen in 2.10 on CPU) numbers operators once when it writes the graph and again
when it runs. `Conv2DBackpropFilter-op1` of the graph is `…-op0` in the file names, and `Mul-op0` and `Mul-op2` may be
swapped. The scope and the type stay, and the second numbering follows the order of the nodes in the graph, counted
over all graphs of a rank. So both ways are tried for each graph: by name and by order. The one that explains more
files with fewer contradictions (different data types, a result older than its input) wins. If both are equal, as in
a dump of one selected operator, order wins on CPU and name elsewhere.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Optional

from msprobe.graphdump.files.datatypes import find_type
from msprobe.graphdump.files.names import spell_for_file
from msprobe.graphdump.graphs.ir import NOT_EXECUTED, Graph, Node

_NUMBERED = re.compile(r"(?P<base>.*)-op(?P<number>\d+)")


@dataclass
class DumpedOperator:
    """An operator as its files show it: the type, the data types of its slots, the first timestamp."""

    type: str
    time: int
    dtypes: dict[tuple[str, int], str] = field(default_factory=dict)


Links = dict[str, Node]


def select_executed(graph: Graph, order: Optional[Iterable[str]]) -> list[Node]:
    """The nodes that run a kernel, in the order of the graph."""
    if order is not None:
        wanted = set(order)
        return [node for node in graph.nodes if node.full_name in wanted]
    return [node for node in graph.nodes if node.type not in NOT_EXECUTED]


def match(
    graphs: Mapping[int, Graph],
    nodes: Mapping[int, list[Node]],
    seen: Mapping[int, Mapping[str, DumpedOperator]],
    on_cpu: bool,
) -> dict[int, tuple[Links, str]]:
    """For each graph of one rank: name in files to node, and how they were matched ("name" or "order")."""
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
            counted[_split(spell_for_file(node.full_name))[0]] += 1
    return result


def _follows_order(
    graph: Graph, ordered: Links, named: Links, files: Mapping[str, DumpedOperator], on_cpu: bool
) -> bool:
    if ordered == named:
        return False
    if len(ordered) != len(named):
        return len(ordered) > len(named)
    difference = _contradictions(graph, ordered, files) - _contradictions(graph, named, files)
    return difference < 0 or (difference == 0 and on_cpu)


def _split(name: str) -> tuple[str, int]:
    match = _NUMBERED.fullmatch(name)
    return (match["base"], int(match["number"])) if match else (name, 0)


def _by_name(nodes: list[Node], files: Mapping[str, DumpedOperator]) -> Links:
    """Matches by name. Some dumps have only the last part of the scope in the file name."""
    full = {spell_for_file(node.full_name): node for node in nodes}
    last: dict[str, Optional[Node]] = {}
    for node in nodes:
        key = spell_for_file(node.full_name.rsplit("/", 1)[-1])
        last[key] = None if key in last else node
    links = {}
    for name in files:
        node_found = full.get(name) or last.get(name)
        if node_found is not None:
            links[name] = node_found
    return links


def _by_order(nodes: list[Node], files: Mapping[str, DumpedOperator], counted: Mapping[str, int]) -> Links:
    """Matches by order: the n-th number of a scope and type is its n-th node. If the dump has all operators of the
    graph, only their order counts. In a partial dump the number counts, minus those of earlier graphs."""
    groups: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        groups[_split(spell_for_file(node.full_name))[0]].append(node)
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


def _contradictions(graph: Graph, links: Links, files: Mapping[str, DumpedOperator]) -> int:
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
    """Whether the graph allows this data type in this slot. An unknown type is allowed."""
    io, index = slot
    said = node.signature
    sides = (said.host_inputs, said.device_inputs) if io == "input" else (said.host_outputs, said.device_outputs)
    declared = {find_type(side[index].dtype) for side in sides if index < len(side)} - {None}
    actual = find_type(dtype)
    return not declared or actual is None or actual in declared
