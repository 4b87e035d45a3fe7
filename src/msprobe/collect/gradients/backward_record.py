"""The backward record of one call, and which edge of the graph has the gradient of which argument.

`Places` says which gradient of a node belongs to which position in a record. `Exit` is an edge that leads to an input
of the call: the node, as something hashable; the slot of the edge there; and the positions of this input among the
arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from msprobe.dump.names import backward_of

Places = Sequence[tuple[int, int]]
Exit = tuple[Any, int, list[int]]


class BackwardRecord:
    """The backward record of one call, as text, while its gradients arrive. `parents` are those of the forward call."""

    __slots__ = (
        "chunk",
        "done",
        "held",
        "incoming",
        "lowest",
        "name",
        "outgoing",
        "parent",
        "parents",
        "remaining",
        "shared",
        "started",
        "unwanted",
        "waiting",
    )

    def __init__(self, name: str, parents: list[str], outputs: int, inputs: int, chunk: str = "") -> None:
        """`chunk`: JSON members that the forward call has too."""
        self.name = name
        self.chunk = chunk
        self.parents = parents
        self.parent = backward_of(parents[-1]) if parents else None
        self.incoming: list[Any] = ["null"] * outputs
        self.outgoing: list[Any] = ["null"] * inputs
        self.remaining: dict[int, int] = {}  # position of an argument -> edges that have not fired
        self.held: Optional[dict[int, Any]] = None  # position of an argument -> the sum so far
        self.shared: tuple[int, ...] = ()
        self.waiting = 0  # hooks that have not fired
        self.lowest = 1 << 64  # the lowest sequence number of its nodes, where the frontend keeps it
        self.started = False
        self.unwanted = False
        self.done = False


def assign_exits(record: BackwardRecord, exits: list[Exit]) -> dict[Any, list[tuple[int, int]]]:
    """Assigns edges to arguments: node -> (slot of its edge, position of the argument).

    An argument with several edges gets their sum. If one operator gets the same tensor twice (`x * x`), there are as
    many edges as arguments, in the same order: one each. Otherwise the first argument gets the sum, and the record
    lists the arguments that share it.
    """
    several: dict[int, list[int]] = {}
    for number, (_, _, positions) in enumerate(exits):
        if len(positions) > 1:
            several.setdefault(id(positions), []).append(number)
    taken: dict[int, int] = {}
    for members in several.values():
        node, _, positions = exits[members[0]]
        same_node = all(exits[member][0] == node for member in members)
        if same_node and len(members) == len(positions):
            taken.update(zip(members, positions))
        else:
            record.shared += tuple(positions)
            taken.update(dict.fromkeys(members, positions[0]))
    remaining = record.remaining
    leaving: dict[Any, list[tuple[int, int]]] = {}
    for number, (node, slot, positions) in enumerate(exits):
        position = taken.get(number, positions[0]) if taken else positions[0]
        remaining[position] = remaining.get(position, 0) + 1
        leaving.setdefault(node, []).append((slot, position))
    return leaving
