"""Reading MindSpore's backward graph: which nodes lie between a call's outputs and its inputs.

A node is known by its unique identity, because MindSpore makes a new Python object every time one is asked
for. Nothing here hooks anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mindspore._c_expression import BackwardNodePy, TensorPy

AVAILABLE = hasattr(BackwardNodePy, "register_prehook") and hasattr(TensorPy, "_grad_node")
LEAF = 2**64 - 1  # the sequence number of an input or a parameter
Key = tuple[int, int]
Edge = tuple[int, int, int, int, Any]  # slot, the other node's identity, its output, its sequence number, itself


def tensors_in(value: Any, found: list[Any], depth: int = 8) -> list[Any]:
    """The tensors of nested arguments or results, in order."""
    if isinstance(value, TensorPy):
        found.append(value)
    elif depth and value is not None:
        if isinstance(value, (list, tuple)):
            for member in value:
                tensors_in(member, found, depth - 1)
        elif isinstance(value, dict):
            for member in value.values():
                tensors_in(member, found, depth - 1)
        elif hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
            for field in value.__dataclass_fields__:
                tensors_in(getattr(value, field, None), found, depth - 1)
    return found


def node_of(tensor: Any) -> Any:
    """The node of the backward graph that made a tensor, or None; also None where its operator has failed."""
    try:
        return tensor._grad_node
    except Exception:
        return None


class Inputs:
    """The edges that lead to a call's inputs, taken before it: an in-place call re-points them."""

    __slots__ = ("count", "edges", "first")

    def __init__(self, args: Any, kwargs: Any, latest: int) -> None:
        """`latest` is the highest sequence number seen so far: the call's own nodes come after it."""
        self.edges: dict[Key, list[int]] = {}
        tensors: list[Any] = []
        for value in args:
            if isinstance(value, TensorPy):
                tensors.append(value)
            elif value is not None:
                tensors_in(value, tensors)
        if kwargs:
            tensors_in(kwargs, tensors)
        self.count = len(tensors)
        for position, tensor in enumerate(tensors):
            node = node_of(tensor)
            if node is not None:
                self.edges.setdefault((node._unique_id(), tensor._output_index), []).append(position)
                number = node._sequence_nr()
                if latest < number != LEAF:
                    latest = number
        self.first = latest + 1


class Graph:
    """What was read of the graph while the outermost call runs.

    Cells are nested, so a node is met once a Cell around it: what it leads to is read from MindSpore once, and
    forgotten with the outermost Cell, so that the graph is not kept alive.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Any, list[Edge]]] = {}  # with the node: its identity is one while it lives

    def forget(self) -> None:
        self._seen.clear()

    def exits(self, entries: Iterable[Any], inputs: Inputs) -> list[tuple[Any, int, list[int]]]:
        """The edges from a call's part of the graph to its inputs: (node, slot of its edge, positions of the input)."""
        edges, first = inputs.edges, inputs.first
        exits: list[tuple[Any, int, list[int]]] = []
        queue = [(node._unique_id(), node) for node in entries]
        reached = {key for key, _ in queue}
        while queue:
            above, node = queue.pop()
            known = self._seen.get(above)
            if known is None:
                known = self._seen[above] = (node, _leads(node))
            for slot, key, number, sequence, below in known[1]:
                positions = edges.get((key, number))
                if positions is not None:
                    exits.append((node, slot, positions))
                elif key not in reached and first <= sequence != LEAF:
                    reached.add(key)
                    queue.append((key, below))
        return exits


def _leads(node: Any) -> list[Edge]:
    return [
        (slot, below._unique_id(), number, below._sequence_nr(), below)
        for slot, (below, number) in enumerate(node.next_functions)
        if below is not None
    ]
