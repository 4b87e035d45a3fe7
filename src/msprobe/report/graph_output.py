"""The output of `msprobe graph`: operators and tensors as text or as JSON."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Optional

from msprobe.dump.errors import DumpError
from msprobe.report.json_output import print_json
from msprobe.report.progress import progress
from msprobe.report.screen import MARK, NAME, PATH, TEXT, Column, Screen
from msprobe.report.terminal import printable

if TYPE_CHECKING:
    from msprobe.graphdump import GraphDump, Operator, Statistics, Tensor
    from msprobe.graphdump.graphs.ir import Node

BARS = "▁▂▃▄▅▆▇█"
Measured = Sequence["tuple[Tensor, Statistics]"]


def warn(messages: Iterable[str]) -> None:
    """Prints messages about unreadable files to standard error."""
    for message in messages:
        print(f"msprobe graph: {printable(message)}", file=sys.stderr)


def measure(dump: GraphDump, tensors: Sequence[Tensor]) -> Measured:
    """Each tensor with its statistics. Prints a message for a tensor that cannot be read; its statistics are empty."""
    from msprobe.graphdump import Statistics

    result = []
    for tensor in progress(tensors, len(tensors), "reading"):
        try:
            found = dump.statistics(tensor)
        except DumpError as error:
            warn([str(error)])
            found = Statistics(tensor.dtype, None)
        result.append((tensor, found))
    return result


def relative(dump: GraphDump, tensor: Tensor) -> str:
    path = tensor.path
    if path is None:
        return ""
    return str(path.relative_to(dump.root)) if path.is_relative_to(dump.root) else str(path)


def add_order(screen: Screen, rows: Sequence[Sequence[object]]) -> None:
    columns = [
        Column("", drop=3), Column("rank", drop=1), Column("graph", drop=2), Column("type", drop=4),
        Column("operator", NAME), Column("line", PATH, drop=5), Column("anomalies", TEXT),
    ]  # fmt: skip
    screen.table(columns, rows)


def add_findings(screen: Screen, rows: Sequence[dict[str, Any]]) -> None:
    columns = [
        Column("kind", MARK), Column("role", drop=6), Column("rank", drop=2), Column("graph", drop=1),
        Column("iteration", drop=3), Column("operator", NAME), Column("slot", drop=7), Column("detail", TEXT, drop=5),
        Column("line", PATH, drop=4),
    ]  # fmt: skip
    if rows:
        screen.table(columns, [[row[column.title] for column in columns] for row in rows])


def add_names(screen: Screen, operators: Sequence[Operator]) -> None:
    rows = [[operator.rank, operator.graph, operator.name] for operator in operators]
    screen.table([Column("rank"), Column("graph"), Column("operator", NAME)], rows)


def add_head(screen: Screen, operator: Operator) -> None:
    backward = ", backward" if operator.node is not None and operator.node.backward else ""
    lines = [f"{operator.type}  {operator.name}", f"  rank {operator.rank}, graph {operator.graph}{backward}"]
    if operator.is_renumbered:
        lines.append(f"  in file names: {operator.in_files}")
    if operator.line is not None:
        lines.append(f"  {operator.line.file}:{operator.line.first}  {operator.line.text}")
    if not operator.in_files:
        lines.append("  not dumped")
    screen.say(["", *lines])


def _slots(node: Node) -> Iterable[tuple[str, str, str]]:
    signature = node.signature
    for io, host, device in (
        ("input", signature.host_inputs, signature.device_inputs),
        ("output", signature.host_outputs, signature.device_outputs),
    ):
        for slot in range(max(len(host), len(device))):
            yield (
                f"{io}.{slot}",
                str(host[slot]) if slot < len(host) else "",
                str(device[slot]) if slot < len(device) else "",
            )


def add_slots(screen: Screen, operator: Operator) -> None:
    if operator.node is not None:
        screen.table([Column("slot"), Column("host", TEXT), Column("device", TEXT, drop=1)], _slots(operator.node))


def add_neighbours(screen: Screen, dump: GraphDump, operator: Operator) -> None:
    lines = [
        f"  input.{slot} from {source if isinstance(source, str) else source.name}"
        for slot, source in dump.producers(operator)
    ]
    lines += [f"  used by {consumer.name}" for consumer in dump.consumers(operator)]
    lines += [f"  {name}: {value}" for name, value in dump.arguments(operator).items()]
    if lines:
        screen.say(lines, drop=2)


def add_tensors(screen: Screen, dump: GraphDump, measured: Measured) -> None:
    if not measured:
        return
    rows = []
    for tensor, found in measured:
        rows.append(
            [
                "" if tensor.iteration is None else tensor.iteration,
                tensor.label,
                tensor.dtype or found.dtype,
                "" if found.shape is None else f"({', '.join(map(str, found.shape))})",
                found.max,
                found.min,
                found.mean,
                found.norm,
                found.nan,
                None if found.posinf is None or found.neginf is None else found.posinf + found.neginf,
                relative(dump, tensor),
            ]
        )
    columns = [
        Column("iteration"), Column("slot"), Column("dtype", drop=3), Column("shape", drop=4), Column("max"),
        Column("min"), Column("mean", drop=2), Column("norm", drop=5), Column("nan"), Column("inf"),
        Column("file", PATH, drop=1),
    ]  # fmt: skip
    screen.table(columns, rows)


def sparkline(values: Sequence[Optional[float]]) -> str:
    """One bar per value, scaled between the smallest and the largest; `!` is not finite, a blank is unknown."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    low, high = min(finite, default=0.0) / 2, max(finite, default=0.0) / 2  # halves: their difference is finite
    bars = []
    for value in values:
        if value is None:
            bars.append(" ")
        elif not math.isfinite(value):
            bars.append("!")
        else:
            bars.append(BARS[round((value / 2 - low) / (high - low) * (len(BARS) - 1)) if high > low else 0])
    return "".join(bars)


def add_plots(screen: Screen, measured: Measured) -> None:
    slots: dict[str, list[tuple[Tensor, Statistics]]] = {}
    for tensor, found in measured:
        if tensor.iteration is not None:
            slots.setdefault(tensor.label, []).append((tensor, found))
    for label, series in sorted(slots.items()):
        if len(series) < 2:
            continue
        lines = ["", f"{label} over iterations {series[0][0].iteration} to {series[-1][0].iteration}"]
        for name in ("max", "min", "norm"):
            values = [getattr(found, name) for _, found in series]
            known = [value for value in values if value is not None]
            if known:
                lines.append(f"  {name:<4}  {sparkline(values)}  {known[0]:.6g} to {known[-1]:.6g}")
        screen.say(lines, drop=1)


def as_json(dump: GraphDump, operator: Operator, iteration: Optional[int]) -> dict[str, Any]:
    line, node = operator.line, operator.node
    return {
        "rank": operator.rank,
        "graph": operator.graph,
        "type": operator.type,
        "name": operator.name,
        "in_files": operator.in_files,
        "linked_by": operator.linked,
        "backward": node.backward if node else None,
        "file": line.file if line else None,
        "line": line.first if line else None,
        "text": line.text if line else None,
        "slots": [dict(zip(("slot", "host", "device"), row)) for row in _slots(node)] if node else [],
        "producers": [
            {"slot": f"input.{slot}", "name": source if isinstance(source, str) else source.name}
            for slot, source in dump.producers(operator)
        ],
        "arguments": dump.arguments(operator),
        "consumers": [consumer.name for consumer in dump.consumers(operator)],
        "tensors": [
            {
                "iteration": tensor.iteration,
                "slot": tensor.label,
                "file": relative(dump, tensor),
                **asdict(found),
            }
            for tensor, found in measure(dump, dump.select_tensors([operator], iteration=iteration))
        ],
    }


def print_graph_json(dump: GraphDump, result: list[dict[str, Any]]) -> None:
    print_json("graph", {"result": result, "notes": list(dump.notes)}, indent=2)
