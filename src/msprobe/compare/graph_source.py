"""Makes graph-mode directories (npy files and statistic.csv) comparable.

An operator is a call, its inputs and outputs by slot are the items; operators are in the order of their timestamps. The
readers of these files are imported only if needed: most comparisons have no such files, and protobuf is slow to load.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from msprobe.dump import layout
from msprobe.dump.errors import DumpError
from msprobe.dump.tensor_files.codec import load

if TYPE_CHECKING:
    from msprobe.graphdump.files.directory import Tensor


@dataclass(frozen=True)
class GraphRank:
    """One rank and iteration of a graph-mode dump, with the members of `RankDump` that comparing uses."""

    path: Path
    step: Optional[int]
    rank: Optional[int]
    tensors: tuple[Tensor, ...] = field(repr=False)
    kind: Optional[str] = "graph"
    unfinished: bool = False

    @property
    def label(self) -> str:
        return f"graph/step{self.step}/rank{self.rank}"

    @property
    def head(self) -> dict[str, Any]:
        return {"task": "tensor", "level": "L2", "framework": "mindspore", "dump_data_dir": None}

    @property
    def troubles(self) -> list[str]:
        return []

    @property
    def debug(self) -> dict[str, Any]:
        return {}

    @property
    def stacks(self) -> dict[str, list[str]]:
        return {}

    @property
    def construct(self) -> dict[str, Optional[str]]:
        return {}

    @property
    def run(self) -> dict[str, Any]:
        return {}

    @functools.cached_property
    def records(self) -> dict[str, dict[str, Any]]:
        """`{operator: {"input": {slot: item}, "output": {slot: item}}}`; a second run of an operator gets `#2`."""
        records: dict[str, dict[str, Any]] = {}
        for tensor in self.tensors:
            name, again = tensor.operator, 1
            while str(tensor.slot) in records.get(name, {}).get(tensor.io, {}):
                again += 1
                name = f"{tensor.operator}#{again}"
            sides = records.setdefault(name, {"input": {}, "output": {}})
            sides.setdefault(tensor.io, {})[str(tensor.slot)] = _item(tensor)
        return records

    def tensor_path(self, data_name: str) -> Path:
        """A file of this dump; `data_name` is a path below its root that the scan found."""
        found = {_data_name(tensor): tensor.path for tensor in self.tensors if tensor.file}.get(data_name)
        if found is None or not layout.is_plain_file_name(found.name):
            raise DumpError(f"{self.path} has no tensor file {data_name!r}.")
        return found


def _data_name(tensor: Tensor) -> str:
    return f"{tensor.directory}/{tensor.file}"


def _item(tensor: Tensor) -> dict[str, Any]:
    from msprobe.graphdump.files import statistics

    item: dict[str, Any] = {"type": "mindspore.Tensor", "dtype": tensor.dtype, "shape": []}
    if tensor.row is not None:
        known = statistics.of_row(tensor.row)
    elif not tensor.file.endswith(".npy"):
        return {**item, "unreadable": f"{tensor.file} is a raw stream: convert it with `msprobe convert` first"}
    else:
        try:
            known = statistics.of_array(load(Path(tensor.directory, tensor.file), mmap=True))
        except DumpError as error:
            return {**item, "unreadable": str(error)}
    item.update(dtype=known.dtype or tensor.dtype, shape=list(known.shape or ()))
    item.update(Max=known.max, Min=known.min, Mean=known.mean, Norm=known.norm)
    if known.md5:
        item["md5"] = known.md5
    if tensor.file.endswith(".npy"):
        item["data_name"] = _data_name(tensor)
    return item


def open_graph_dump(path: Path) -> list[GraphRank]:
    """The ranks and iterations of a graph-mode dump; empty if the path has none."""
    if not path.is_dir():
        return []
    from msprobe.graphdump.files.directory import scan

    found: dict[tuple[Optional[int], int], list[Tensor]] = {}
    for tensor in scan(path).tensors:
        if tensor.iteration is not None:
            found.setdefault((tensor.iteration, tensor.rank), []).append(tensor)
    return [GraphRank(path, step, rank, tuple(tensors)) for (step, rank), tensors in sorted(found.items())]
