"""Reads MindSpore's backward graph: which nodes are between the outputs and the inputs of a call.

Nodes are compared by their unique identity, because MindSpore creates a new Python object each time it returns a node.
This module hooks nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mindspore._c_expression import TensorPy

from msprobe.collect.calls.tensor_search import TensorSearch
from msprobe.collect.gradients.backward_record import Exit
from msprobe.mindspore.features import LEAF, node_identity

Key = tuple[Any, int]
Edge = tuple[int, Any, int, int, Any]  # slot, the other node's identity, its output, its sequence number, itself

_search = TensorSearch(TensorPy)
tensors_in = _search.in_value


def node_of(tensor: Any) -> Any:
    """The node of the backward graph that made a tensor; None without one, or if its operator failed."""
    try:
        return tensor._grad_node
    except Exception:
        return None


class InputEdges:
    """The edges that lead to the inputs of a call, taken before it: an in-place call changes them."""

    __slots__ = ("count", "edges", "first")
    leaves: ClassVar[dict[int, list[int]]] = {}  # MindSpore has a node for a parameter: it is among the edges

    def __init__(self, args: Any, kwargs: Any, latest: int) -> None:
        """`latest` is the highest sequence number seen so far: the call's own nodes come after it."""
        self.edges: dict[Key, list[int]] = {}
        tensors = _search.in_call(args, kwargs)
        self.count = len(tensors)
        for position, tensor in enumerate(tensors):
            node = node_of(tensor)
            if node is not None:
                self.edges.setdefault((node_identity(node), tensor._output_index), []).append(position)
                number = node._sequence_nr()
                if latest < number != LEAF:
                    latest = number
        self.first = latest + 1


class Graph:
    """The part of the graph that was read while the outermost call runs.

    Cells are nested, so the walk visits a node once for each Cell around it. The edges of a node are read from
    MindSpore once. They are dropped with the outermost Cell, so that msprobe does not keep the graph alive.
    """

    def __init__(self) -> None:
        self._seen: dict[Any, tuple[Any, list[Edge]]] = {}  # with the node: its identity is unique only while it lives

    def forget(self) -> None:
        self._seen.clear()

    def node(self, key: Any) -> Any:
        """A node that `exits` has visited."""
        return self._seen[key][0]

    def exits(self, entries: Mapping[Any, Any], inputs: InputEdges) -> list[Exit]:
        """The edges from the part of the graph of a call to its inputs. `entries` and the exits name nodes by
        identity."""
        edges, first = inputs.edges, inputs.first
        exits: list[Exit] = []
        queue = list(entries.items())
        reached = set(entries)
        while queue:
            above, node = queue.pop()
            known = self._seen.get(above)
            if known is None:
                known = self._seen[above] = (node, _leads(node))
            for slot, key, number, sequence, below in known[1]:
                positions = edges.get((key, number))
                if positions is not None:
                    exits.append((above, slot, positions))
                elif key not in reached and first <= sequence != LEAF:
                    reached.add(key)
                    queue.append((key, below))
        return exits


def _leads(node: Any) -> list[Edge]:
    return [
        (slot, node_identity(below), number, below._sequence_nr(), below)
        for slot, (below, number) in enumerate(node.next_functions)
        if below is not None
    ]
