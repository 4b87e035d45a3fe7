"""`GraphDump`: reads a graph-mode dump, for the commands and for scripts.

Opening a dump walks the directories and reads no tensor. Graphs are parsed at the first access to an operator,
values are mapped from their files at the first access, and statistics are computed for one tensor at a time. So a
dump of thousands of files costs only what is read of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np
import numpy.typing as npt

from msprobe.dump.errors import DumpError
from msprobe.dump.tensor_files.codec import load
from msprobe.dump.untrusted.json_files import read_json
from msprobe.dump.untrusted.regular_files import open_regular, read_regular
from msprobe.graphdump.files import statistics
from msprobe.graphdump.files.datatypes import find_type, unpack
from msprobe.graphdump.files.directory import Tensor, scan
from msprobe.graphdump.files.names import parse_async
from msprobe.graphdump.files.statistics import Statistics
from msprobe.graphdump.graphs.graph_pb import parse_pb
from msprobe.graphdump.graphs.ir import Graph, parse_text
from msprobe.graphdump.graphs.matching import DumpedOperator, match, select_executed
from msprobe.graphdump.graphs.operators import Key, Operator, lines_at, link


class GraphDump:
    """A graph-mode dump directory. `notes` lists what is missing or cannot be read."""

    def __init__(self, path: Union[str, Path]) -> None:
        if not Path(path).is_dir():
            raise DumpError(f"{path} is not a directory; give the directory of a graph-mode dump.")
        self._index = scan(Path(path))
        if not self._index.tensors and not self._index.graph_files:
            raise DumpError(f"{path} is not a graph-mode dump: {_explain_nothing(Path(path))}")
        for rank, found in sorted(self._index.rank_directories.items()):
            if len(found) > 1:
                raise DumpError(
                    f"{path} has more than one dump of rank {rank}: give one of {', '.join(sorted(found))}."
                )
        self.root = self._index.root
        self._graph_notes: dict[str, None] = {}

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All dumped tensors, in the order of their timestamps."""
        return tuple(self._index.tensors)

    @property
    def ranks(self) -> tuple[int, ...]:
        found = {tensor.rank for tensor in self._index.tensors} | {rank for rank, _ in self._index.graph_files}
        return tuple(sorted(found))

    @property
    def iterations(self) -> tuple[int, ...]:
        return tuple(sorted({t.iteration for t in self._index.tensors if t.iteration is not None}))

    @property
    def notes(self) -> tuple[str, ...]:
        notes = [f"cannot read {place}" for place in self._index.unreadable]
        if self._index.links:
            notes.append(f"{self._index.links} directories are links and were skipped: give a link itself to read it")
        if self._index.foreign_files:
            notes.append(f"{self._index.foreign_files} .npy files do not have the name of a dump file and were skipped")
        notes += [
            f"{place} is not a rank/net/graph/iteration directory: read as rank 0, graph 0, iteration 0"
            for place in self._index.unplaced
        ]
        without = [rank for rank in self.ranks if not any(key[0] == rank for key in self._index.graph_files)]
        if without:
            listed = ", ".join(map(str, without))
            notes.append(
                f"rank {listed} has no graphs/ms_output_trace_code_graph_*.ir or .pb: its operators have only the "
                "names of their files, without source lines, shapes or neighbours"
            )
        _ = self.operators  # reading the graphs may add notes
        return (*notes, *self._graph_notes)

    @cached_property
    def _graphs(self) -> dict[tuple[int, int], Graph]:
        """Every readable graph. The .ir text is preferred: it also has the shapes on the device."""
        result: dict[tuple[int, int], Graph] = {}
        for key, files in self._index.graph_files.items():
            for kind in ("ir", "pb"):
                path = files.get(kind)
                if path is None or key in result:
                    continue
                try:
                    if kind == "ir":
                        result[key] = parse_text(_read_text(path))
                    else:
                        result[key] = parse_pb(read_regular(path, path.parent.parent))
                except (OSError, ValueError) as error:
                    self._graph_notes.setdefault(f"cannot read {path}: {error}")
        return result

    def graph(self, rank: int, graph: int) -> Optional[Graph]:
        """The parsed graph, or None if the dump has none."""
        return self._graphs.get((rank, graph))

    def order(self, rank: int, graph: int) -> Optional[tuple[str, ...]]:
        """The full names in the order of ms_execution_order_graph_{g}.csv, or None without that file."""
        lines = self._lines(self._index.order_files.get((rank, graph)))
        return None if lines is None else tuple(line for line in lines if not line.startswith("NodeExecutionOrder"))

    def history(self, rank: int, graph: int) -> Optional[tuple[int, ...]]:
        """The iterations in which a root graph ran, or None without its global execution order."""
        lines = self._lines(self._index.history_files.get((rank, graph)))
        return None if lines is None else tuple(int(line) for line in lines if line.isdecimal() and len(line) < 19)

    def _lines(self, path: Optional[Path]) -> Optional[list[str]]:
        if path is None:
            return None
        try:
            text = _read_text(path)
        except OSError as error:
            self._graph_notes.setdefault(f"cannot read {path}: {error.strerror or error}")
            return None
        return [line.strip() for line in text.splitlines() if line.strip()]

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Every operator: first those of the graphs in their order, then those that only files show."""
        seen = self._find_dumped()
        result: list[Operator] = []
        for rank in self.ranks:
            graphs = {number: graph for (owner, number), graph in self._graphs.items() if owner == rank}
            nodes = {number: select_executed(graph, self.order(rank, number)) for number, graph in graphs.items()}
            links = match(graphs, nodes, seen.get(rank, {}), self._index.devices.get(rank) == "CPU")
            for number in sorted(graphs.keys() | seen.get(rank, {}).keys()):
                linked, how = links.get(number, ({}, ""))
                result += link(rank, number, nodes.get(number, []), seen.get(rank, {}).get(number, {}), linked, how)
        result += self._parameters()
        return tuple(result)

    @cached_property
    def execution(self) -> tuple[Operator, ...]:
        """The operators in execution order: by the start of their graph, then by the execution order file of the
        graph, or, without that file, by the timestamps of the tensor files. Parameters are left out."""
        times: dict[Key, int] = {}
        started: dict[tuple[int, int], int] = {}
        for tensor in self._index.tensors:
            times.setdefault(Key(tensor.rank, tensor.graph, tensor.operator), tensor.timestamp)
            started.setdefault((tensor.rank, tensor.graph), tensor.timestamp)
        graphs = {(operator.rank, operator.graph) for operator in self.operators}
        places = {graph: {name: place for place, name in enumerate(self.order(*graph) or ())} for graph in graphs}

        def moment(one: Operator) -> tuple[float, ...]:
            graph = (one.rank, one.graph)
            place = places[graph].get(one.name, math.inf)
            return (one.rank, started.get(graph, math.inf), one.graph, place, times.get(one.key, math.inf))

        return tuple(sorted((one for one in self.operators if one.type != "Parameter"), key=moment))

    def _find_dumped(self) -> dict[int, dict[int, dict[str, DumpedOperator]]]:
        """The operators as the files show them, by rank, graph and name in files."""
        seen: dict[int, dict[int, dict[str, DumpedOperator]]] = {}
        for tensor in self._index.tensors:
            if tensor.type == "Parameter":
                continue
            files = seen.setdefault(tensor.rank, {}).setdefault(tensor.graph, {})
            entry = files.setdefault(tensor.operator, DumpedOperator(tensor.type, tensor.timestamp))
            entry.dtypes.setdefault((tensor.io, tensor.slot), tensor.dtype)
        return seen

    def _parameters(self) -> Iterable[Operator]:
        """Parameters and constants: they have files but no node in a graph."""
        found = {(t.rank, t.graph, t.operator): t.type for t in self._index.tensors if t.type == "Parameter"}
        for (rank, graph, name), kind in found.items():
            yield Operator(rank, graph, kind, name, name, None, "")

    def select_nodes(
        self,
        name: Optional[str] = None,
        regex: Optional[str] = None,
        type: Optional[str] = None,
        line: Optional[str] = None,
        rank: Optional[int] = None,
    ) -> tuple[Operator, ...]:
        """Operators that match all given conditions: a part of the name, a regular expression, the type (upper or
        lower case), a source line ("train.py:175") or a part of its text."""
        pattern = re.compile(regex) if regex is not None else None
        return tuple(
            operator
            for operator in self.operators
            if (rank is None or operator.rank == rank)
            and (name is None or name in operator.name or name in operator.in_files)
            and (pattern is None or pattern.search(operator.name) or pattern.search(operator.in_files))
            and (type is None or operator.type.lower() == type.lower())
            and (line is None or lines_at(operator, line))
        )

    def select_tensors(
        self,
        operators: Optional[Iterable[Operator]] = None,
        rank: Optional[int] = None,
        iteration: Optional[int] = None,
        io: Optional[str] = None,
        slot: Optional[int] = None,
    ) -> tuple[Tensor, ...]:
        """Dumped tensors that match all given conditions, in the order of their timestamps."""
        if operators is None:
            candidates: Iterable[Tensor] = self._index.tensors
        else:
            keys = {operator.key for operator in operators if operator.in_files}
            candidates = sorted(
                (tensor for key in keys for tensor in self._by_operator.get(key, ())),
                key=lambda tensor: (tensor.rank, tensor.iteration or 0, tensor.timestamp),
            )
        return tuple(
            tensor
            for tensor in candidates
            if (rank is None or tensor.rank == rank)
            and (iteration is None or tensor.iteration == iteration)
            and (io is None or tensor.io == io)
            and (slot is None or tensor.slot == slot)
        )

    @cached_property
    def _by_operator(self) -> dict[Key, list[Tensor]]:
        result: dict[Key, list[Tensor]] = {}
        for tensor in self._index.tensors:
            result.setdefault(Key(tensor.rank, tensor.graph, tensor.operator), []).append(tensor)
        return result

    @cached_property
    def _by_node(self) -> dict[tuple[int, int, str], Operator]:
        return {(op.rank, op.graph, op.node.key): op for op in self.operators if op.node is not None}

    def producers(self, operator: Operator) -> tuple[tuple[int, Union[Operator, str]], ...]:
        """For each input: the operator that produces it, or a text: `%name` of a parameter or of a node without a
        kernel (MakeTuple), or a constant."""
        graph = self.graph(operator.rank, operator.graph)
        if graph is None or operator.node is None:
            return ()
        result: list[tuple[int, Union[Operator, str]]] = []
        for slot, key in enumerate(operator.node.inputs):
            source = graph.producer(key)
            found = self._by_node.get((operator.rank, operator.graph, source.key)) if source else None
            if found is None:
                origin = graph.origin(key)
                node = graph.by_key.get(origin)
                result.append((slot, origin if node is None else f"%{node.full_name}"))
            else:
                result.append((slot, found))
        return tuple(result)

    def consumers(self, operator: Operator) -> tuple[Operator, ...]:
        """The operators that use an output of this one."""
        graph = self.graph(operator.rank, operator.graph)
        if graph is None or operator.node is None:
            return ()
        found = (
            self._by_node.get((operator.rank, operator.graph, node.key))
            for node in graph.consumers.get(operator.node.key, ())
        )
        return tuple(operator for operator in found if operator is not None)

    def arguments(self, operator: Operator) -> dict[str, str]:
        """The initialisation values of the operator, if the dump has them (save_kernel_args)."""
        path = self._index.argument_files.get(operator.key)
        if path is None:
            return {}
        try:
            found = read_json(path, path.parent.parent)
        except (OSError, ValueError) as error:
            raise DumpError(f"Cannot read {path}: {error}.") from None
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}

    def value(self, tensor: Tensor) -> npt.NDArray[Any]:
        """The elements, read-only and mapped from the file. A raw file without a shape in its name is flat."""
        path = tensor.path
        if path is None:
            raise DumpError(
                f"The dump has only statistics of {tensor.operator} {tensor.label} in iteration {tensor.iteration}."
            )
        if not tensor.file.endswith(".npy"):
            return _raw(path, tensor.dtype, tensor.shape)
        return load(path, mmap=True)

    def statistics(self, tensor: Tensor) -> Statistics:
        """The statistics, from the file of the tensor or, without a file, from its row in statistic.csv."""
        if tensor.file:
            return statistics.of_array(self.value(tensor))
        return statistics.of_row(tensor.row or {})


def _explain_nothing(path: Path) -> str:
    """Why a directory is not a dump for `msprobe graph`, and what to do if it is a dump of Ascend."""
    if any(parse_async(file.name) for file in path.rglob("*.*.*.*")):
        return (
            "it has asynchronous dump files of Ascend. Convert them first: "
            f"msprobe convert -d {path} -out DIRECTORY --layout sync."
        )
    return "it has no tensor file, no statistic.csv and no graph."


def _read_text(path: Path) -> str:
    return read_regular(path, path.parent.parent).decode("utf-8", errors="replace")


def _raw(path: Path, token: str, shape: Optional[tuple[int, ...]]) -> npt.NDArray[Any]:
    kind = find_type(token)
    if kind is None:
        raise DumpError(f"Cannot read {path}: unknown data type {token!r}.")
    try:
        with open_regular(path, path.parent.parent) as file:
            size = file.seek(0, 2)
            raw = np.memmap(file, np.uint8, "r") if size else np.zeros(0, np.uint8)
    except OSError as error:
        raise DumpError(f"Cannot read {path}: {error.strerror or error}.") from None
    elements = size * 8 // kind.bits
    if kind.bytes_of(elements) != size:
        raise DumpError(f"{path} has {size} bytes, which is not a multiple of the size of {kind.name}.")
    if shape is None:
        return unpack(raw, kind, elements)
    if kind.bytes_of(math.prod(shape)) != size:
        raise DumpError(f"{path} has {size} bytes, which does not fit {kind.name} of shape {shape}.")
    return unpack(raw, kind, math.prod(shape)).reshape(shape)
