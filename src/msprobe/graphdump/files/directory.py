"""The files of a graph-mode dump, found in one walk over the directories. It opens no tensor.

It knows all documented layouts: the synchronous one of MindSpore, that of Ascend O2 (`rank_0/{time}/step_0`), the
device trees of r1.5 and of acl, and a plain directory of tensor files. The user may give the dump, a rank or a single
iteration; the graphs are found in the rank directory above it.
"""

from __future__ import annotations

import csv
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Optional

from msprobe.dump.untrusted.json_files import parse_json
from msprobe.dump.untrusted.regular_files import open_text, read_regular
from msprobe.graphdump.files import names

STATISTICS = "statistic.csv"
GRAPHS, ORDERS, METADATA = "graphs", "execution_order", ".dump_metadata"
_NOT_TENSORS = {GRAPHS, ORDERS, METADATA}
_MAX_DEPTH = 12
_LARGEST_NOTE = 1 << 16

_PLACES = (
    re.compile(r".*/rank_(?P<rank>\d+)/(?P<net>[^/]+)/(?P<graph>\d+)/(?P<iteration>\d+|constants)"),
    re.compile(r".*/rank_(?P<rank>\d+)/(?P<net>[^/]+)/step_(?P<iteration>\d+)"),
    re.compile(r".*/\d{14}/(?P<rank>\d+)/(?P<net>\d+)"),  # acl, with the number of a model
    re.compile(r".*/(?P<rank>\d+)/(?P<net>[^/]+)/(?P<graph>\d+)/(?P<iteration>\d+|constants)"),
)
_GRAPH_FILE = re.compile(r"ms_output_trace_code_graph_(?P<graph>\d+)\.(?P<kind>ir|pb)")
_ORDER_FILE = re.compile(r"ms_(?P<all>global_)?execution_order_graph_(?P<graph>\d+)\.csv")


class Tensor(NamedTuple):
    """One dumped input or output. `iteration` is None for constants. `operator` is the name in the file name. `file`
    is empty if the dump has only a row of statistic.csv (`row`)."""

    rank: int
    net: str
    graph: int
    iteration: Optional[int]
    type: str
    operator: str
    io: str
    slot: int
    format: str
    dtype: str
    task: int
    stream: int
    timestamp: int
    directory: str
    file: str
    row: Optional[dict[str, str]] = None
    shape: Optional[tuple[int, ...]] = None  # as the file's name has it

    @property
    def path(self) -> Optional[Path]:
        return Path(self.directory, self.file) if self.file else None

    @property
    def label(self) -> str:
        return f"{self.io}.{self.slot}"


class Place(NamedTuple):
    """What the path of a directory says about the tensors in it."""

    rank: int
    net: str
    graph: int
    iteration: Optional[int]


@dataclass
class Index:
    """All files found: tensors in the order of their timestamps, and the graph files of each rank."""

    root: Path
    tensors: list[Tensor] = field(default_factory=list)
    graph_files: dict[tuple[int, int], dict[str, Path]] = field(default_factory=dict)
    order_files: dict[tuple[int, int], Path] = field(default_factory=dict)
    history_files: dict[tuple[int, int], Path] = field(default_factory=dict)
    argument_files: dict[tuple[int, int, str], Path] = field(default_factory=dict)
    devices: dict[int, str] = field(default_factory=dict)
    rank_directories: dict[int, set[str]] = field(default_factory=dict)
    unplaced: list[Path] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    foreign_files: int = 0
    links: int = 0


def scan(root: Path) -> Index:
    """Walks `root`. Directories that cannot be listed are in `unreadable`."""
    absolute = Path(os.path.abspath(root))  # noqa: PTH100 - resolve() would follow links
    index = Index(absolute)
    _walk(index, str(absolute), 0)
    for above in absolute.parents:
        if _rank_of(above) is not None:
            _take_graphs(index, above)
            break
    index.tensors.sort(key=lambda tensor: (tensor.timestamp, tensor.file))
    return index


def _walk(index: Index, directory: str, depth: int) -> None:
    try:
        with os.scandir(directory) as entries:
            listed = list(entries)
    except OSError as error:
        index.unreadable.append(f"{directory}: {error.strerror}")
        return
    files = [entry.name for entry in listed if not entry.is_dir(follow_symlinks=False)]
    index.links += sum(entry.is_symlink() and entry.is_dir() for entry in listed)
    _take_files(index, directory, files)
    _take_graphs(index, Path(directory))
    for entry in sorted(listed, key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False) and entry.name not in _NOT_TENSORS and depth < _MAX_DEPTH:
            _walk(index, entry.path, depth + 1)


def _rank_of(directory: Path) -> Optional[int]:
    match = re.fullmatch(r"rank_(\d+)", directory.name)
    return int(match[1]) if match else None


def _take_graphs(index: Index, directory: Path) -> None:
    """Adds the graphs and execution orders of a rank directory."""
    rank = _rank_of(directory)
    if rank is None:
        return
    index.rank_directories.setdefault(rank, set()).add(str(directory))
    index.devices[rank] = _device(directory / METADATA / "config.json")
    for folder in (GRAPHS, ORDERS):
        try:
            found = sorted(path.name for path in (directory / folder).iterdir())
        except FileNotFoundError:
            continue
        except OSError as error:
            index.unreadable.append(f"{directory / folder}: {error.strerror}")
            continue
        for name in found:
            path = directory / folder / name
            graph, order = _GRAPH_FILE.fullmatch(name), _ORDER_FILE.fullmatch(name)
            if graph is not None:
                index.graph_files.setdefault((rank, int(graph["graph"])), {})[graph["kind"]] = path
            elif order is not None:
                target = index.history_files if order["all"] else index.order_files
                target[rank, int(order["graph"])] = path


def _device(path: Path) -> str:
    """The device that MindSpore recorded ("CPU"), or an empty string."""
    try:
        noted = parse_json(read_regular(path, path.parent.parent, _LARGEST_NOTE))
    except (OSError, ValueError):
        return ""
    return str(noted.get("device_target", "")) if isinstance(noted, dict) else ""


def parse_place(directory: str) -> Optional[Place]:
    """Rank, net, graph and iteration from the path of a directory, or None."""
    for pattern in _PLACES:
        match = pattern.fullmatch(directory)
        if match is None:
            continue
        groups = match.groupdict()
        graph = int(groups.get("graph") or 0)
        iteration = None if groups.get("iteration") == "constants" else int(groups.get("iteration") or 0)
        net = re.sub(rf"_graph_{graph}$", "", groups["net"])
        return Place(int(groups["rank"]), net, graph, iteration)
    return None


def _take_files(index: Index, directory: str, files: list[str]) -> None:
    mapping = names.read_mapping(Path(directory)) if names.MAPPING in files else {}
    place = parse_place(directory)
    here = place or Place(0, "", 0, 0)
    found: list[Tensor] = []
    for name in files:
        parsed = names.parse_tensor(name)
        if parsed is None:
            original = mapping.get(name) or mapping.get(os.path.splitext(name)[0])  # noqa: PTH122
            parsed = names.parse_tensor(original) if original else None
        if parsed is None:
            index.foreign_files += name.endswith(".npy")
            arguments = names.parse_arguments(name)
            if arguments is not None and place is not None:
                index.argument_files[here.rank, here.graph, arguments[1]] = Path(directory, name)
            continue
        operator = parsed.operator
        found.append(
            Tensor(
                *here,
                operator.type,
                operator.name,
                parsed.io,
                parsed.slot,
                parsed.format,
                parsed.dtype,
                operator.task,
                operator.stream,
                operator.timestamp,
                directory,
                name,
                shape=parsed.shape,
            )
        )
    if STATISTICS in files:
        found = _with_statistics(index, found, here, directory)
    if found and place is None:
        index.unplaced.append(Path(directory))
    index.tensors += found


def _with_statistics(index: Index, tensors: list[Tensor], place: Place, directory: str) -> list[Tensor]:
    """The tensors with their rows of statistic.csv. A row without a file becomes a tensor without a file."""
    waiting: dict[tuple[str, str, int], list[Tensor]] = {}
    for tensor in tensors:
        waiting.setdefault((tensor.operator, tensor.io, tensor.slot), []).append(tensor)
    result: list[Tensor] = []
    try:
        with open_text(Path(directory, STATISTICS), Path(directory)) as file:
            rows = [row for row in csv.DictReader(file, skipinitialspace=True) if row.get("Op Name")]
    except (OSError, csv.Error) as error:
        index.unreadable.append(f"{directory}/{STATISTICS}: {error}")
        return tensors
    for row in rows:
        try:
            operator, io, slot = names.spell_for_file(row["Op Name"]), row["IO"].strip(), int(row["Slot"])
            task, stream = int(row.get("Task ID") or 0), int(row.get("Stream ID") or 0)
            time = int(row.get("Timestamp") or 0)
            if io not in ("input", "output") or slot < 0:
                raise ValueError(io)
        except (KeyError, ValueError, TypeError, AttributeError):
            index.unreadable.append(f"{directory}/{STATISTICS}: a row without Op Name, IO or Slot was skipped")
            continue
        match = waiting.get((operator, io, slot))
        if match:
            result.append(match.pop(0)._replace(row=row))
        else:
            kind, dtype = row.get("Op Type") or "", row.get("Data Type") or ""
            result.append(Tensor(*place, kind, operator, io, slot, "", dtype, task, stream, time, directory, "", row))
    return result + [tensor for left in waiting.values() for tensor in left]
