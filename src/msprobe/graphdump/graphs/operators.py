"""An operator of a dump: a node of the graph, its files, or both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Optional

from msprobe.graphdump.files.names import spell_for_file
from msprobe.graphdump.graphs.ir import Node, SourceLine
from msprobe.graphdump.graphs.matching import DumpedOperator

_PLACE_IN_CODE = re.compile(r"(?P<file>\S+):(?P<line>\d+)")


class Key(NamedTuple):
    """Identifies the operator of a tensor. `operator` is its name in file names."""

    rank: int
    graph: int
    operator: str


@dataclass(frozen=True)
class Operator:
    """One operator of one graph on one rank.

    `name` is the full name in the graph, or the name in files if there is no graph. `in_files` is the name in files,
    empty if the operator was not dumped. `linked` says how the two were matched: "name", "order" (the numbers differ,
    see matching.py) or "" (one of the two is missing).
    """

    rank: int
    graph: int
    type: str
    name: str
    in_files: str
    node: Optional[Node]
    linked: str

    @property
    def key(self) -> Key:
        return Key(self.rank, self.graph, self.in_files)

    @property
    def is_renumbered(self) -> bool:
        """Whether the number in files differs from the number in the graph."""
        return bool(self.in_files and self.node) and spell_for_file(self.name) != self.in_files

    @property
    def line(self) -> Optional[SourceLine]:
        """The innermost source line outside of installed packages, or else the innermost line."""
        lines = self.node.lines if self.node else ()
        own = [line for line in lines if not line.is_installed and not line.text.startswith("def ")]
        return own[-1] if own else lines[-1] if lines else None


def link(
    rank: int, graph: int, nodes: list[Node], files: dict[str, DumpedOperator], links: dict[str, Node], how: str
) -> Iterator[Operator]:
    """All operators of one graph: the nodes with their files, then the files without a node. A node has several
    operators if it has several names in files."""
    spelled: dict[object, list[str]] = {}
    for name, node in links.items():
        spelled.setdefault(node.key, []).append(name)
    for node in nodes:
        for name in spelled.get(node.key, [""]):
            yield Operator(rank, graph, node.type, node.full_name, name, node, how if name else "")
    for name, entry in files.items():
        if name not in links:
            yield Operator(rank, graph, entry.type, name, name, None, "")


def lines_at(operator: Operator, query: str) -> tuple[SourceLine, ...]:
    """The source lines of an operator at "file.py:175", or with `query` in their text (blanks do not matter)."""
    if operator.node is None:
        return ()
    place = _PLACE_IN_CODE.fullmatch(query.strip())
    if place is not None:
        return tuple(line for line in operator.node.lines if line.is_at(place["file"], int(place["line"])))
    wanted = " ".join(query.split())
    return tuple(line for line in operator.node.lines if wanted in " ".join(line.text.split()))
