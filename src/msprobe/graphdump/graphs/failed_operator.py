"""Finds the operator that raised, and its inputs, from the graph and the files of the failed iteration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from msprobe.dump.errors import DumpError
from msprobe.dump.tensor_files.npy_file import load
from msprobe.graphdump.dumping.raised import Raised
from msprobe.graphdump.dumping.staging import StagedFile
from msprobe.graphdump.files.datatypes import find_type, mindspore_token
from msprobe.graphdump.graphs.attributes import OperatorDetails
from msprobe.graphdump.graphs.ir import Graph, Node, parse_text

Slots = dict[int, Optional[StagedFile]]
_INDEX = re.compile(r"I64\((\d{1,9})\)")


def find_failed_inputs(
    text: str,
    files: list[StagedFile],
    operators: dict[str, OperatorDetails],
    failure: Optional[str],
    raised: Sequence[Raised] = (),
) -> Iterator[tuple[str, Slots]]:
    """`{type}.{name}` and input slots of the operators that were ready and did not run.

    If the text of the exception names the type of one of them, only those. Yields nothing if nothing failed or the
    graph ran to its end. An input of the graph that no operator has read comes from `raised`."""
    graph = parse_text(text)
    nodes = {node.full_name: node for node in graph.nodes}
    pairs = ((nodes.get(operator.full_name), name) for name, operator in operators.items())
    spelled = {node.key: name for node, name in pairs if node is not None}
    ran: dict[str, dict[tuple[str, int], StagedFile]] = {}
    for one in files:
        ran.setdefault(one.name.operator.name, {})[one.name.io, one.name.slot] = one
    if failure is None or not ran:
        return
    found = []
    for name, operator in operators.items():
        node = nodes.get(operator.full_name)
        if node is None or name in ran:
            continue
        sources = [graph.producer(key) for key in node.inputs]
        if all(source is None or spelled.get(source.key, "") in ran for source in sources):
            found.append((name, operator, node))
    named = [one for one in found if _is_named(one[1].type, failure)]
    for name, operator, node in named or found:
        slots = {
            slot: _source(graph, key, ran, spelled)
            for slot, key in enumerate(node.inputs)
            if key.startswith("%") or key in graph.by_key
        }
        given = _inputs_of(operator, raised)
        for slot, source in slots.items():
            if source is None:
                slots[slot] = _input_of_graph(graph.origin(node.inputs[slot]), given, node, slot, files)
        yield f"{operator.type}.{name}", slots


def _inputs_of(operator: OperatorDetails, raised: Sequence[Raised]) -> dict[str, Path]:
    """The inputs of the graph that raised in this operator: several graphs may have inputs of the same names."""
    named = [one for one in raised if _is_named(operator.type, one.text)] or (raised if len(raised) == 1 else ())
    return named[0].inputs if named else {}


def _input_of_graph(
    key: str, inputs: dict[str, Path], node: Node, slot: int, files: list[StagedFile]
) -> Optional[StagedFile]:
    """The value of an input of the graph, if it has the type and shape that the operator reads in this slot."""
    path = inputs.get(key[1:])
    specs = node.signature.host_inputs
    if path is None or slot >= len(specs):
        return None
    try:
        array = load(path)
    except DumpError:
        return None
    kind = find_type(array.dtype.name)
    if kind is None or find_type(specs[slot].dtype) != kind or specs[slot].shape != array.shape:
        return None
    name = replace(files[-1].name, io="input", slot=slot, format="DefaultFormat", dtype=mindspore_token(kind))
    return replace(files[-1], path=path, file=path.name, original=path.name, name=name, size=array.nbytes)


def _is_named(kind: str, failure: str) -> bool:
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(kind)}(?![A-Za-z0-9])", failure, re.IGNORECASE) is not None


def _source(
    graph: Graph, key: str, ran: dict[str, dict[tuple[str, int], StagedFile]], spelled: dict[str, str]
) -> Optional[StagedFile]:
    """The file with this value: the output of its producer or, for a parameter, an input of another operator."""
    producer = graph.producer(key)
    if producer is not None:
        return ran.get(spelled.get(producer.key, ""), {}).get(("output", _index(graph, key)))
    origin = graph.origin(key)
    for node in graph.nodes:
        for slot, other in enumerate(node.inputs):
            found = ran.get(spelled.get(node.key, ""), {}).get(("input", slot))
            if found is not None and graph.origin(other) == origin:
                return found
    return None


def _index(graph: Graph, key: str) -> int:
    """The output index of a value at its producer, from the nearest TupleGetItem."""
    node: Optional[Node] = graph.by_key.get(key)
    while node is not None and node.type in ("Depend", "Load", "TupleGetItem") and node.inputs:
        if node.type == "TupleGetItem" and len(node.inputs) > 1:
            match = _INDEX.fullmatch(node.inputs[1])
            return int(match[1]) if match else 0
        node = graph.by_key.get(node.inputs[0])
    return 0
