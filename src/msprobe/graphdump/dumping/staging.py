"""MindSpore's files before the worker takes them: which are finished, their size, and their operator."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from msprobe.graphdump.files import names
from msprobe.graphdump.files.directory import GRAPHS
from msprobe.graphdump.graphs.attributes import Numbering, OperatorDetails, describe

_SETTLED = 10.0
_GRAPH = re.compile(r"ms_output_trace_code_graph_(\d{1,9})\.ir")


@dataclass(frozen=True)
class StagedFile:
    """One finished tensor file. `file` is its name on disk, `original` its full name."""

    path: Path
    file: str
    original: str
    name: names.TensorName
    rank: int
    graph: int
    iteration: int
    size: int


class StagingDirectory:
    """The tree `{root}/rank_{r}/{net}/{graph}/{iteration}/`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[str, int] = {}
        self._waiting: list[StagedFile] = []
        self._seen_at: dict[str, int] = {}
        self._growing: dict[str, int] = {}
        self._operators: dict[int, dict[int, dict[str, OperatorDetails]]] = {}
        self._numbering: dict[int, Numbering] = {}

    def new_files(self) -> list[StagedFile]:
        """Files finished since the last call, by their timestamps."""
        self.rescan()
        found, self._waiting = self._waiting, []
        found.sort(key=lambda one: (one.name.operator.timestamp, one.original))
        return found

    def bytes_used(self) -> int:
        return sum(self._known.values()) + sum(self._growing.values())

    def release(self, one: StagedFile) -> None:
        """Forgets a file that is no longer in this directory."""
        self._known.pop(str(one.path), None)

    def discard(self, one: StagedFile) -> None:
        one.path.unlink()
        self.release(one)

    def list_unfinished(self) -> list[str]:
        return sorted(self._growing)

    def ranks(self) -> list[tuple[int, Path]]:
        found = [(re.fullmatch(r"rank_(\d{1,9})", path.name), path) for path in self.root.iterdir()]
        return [(int(match[1]), path) for match, path in found if match is not None]

    def rescan(self) -> None:
        """Finds new files. Lists only directories that have changed since the last scan."""
        for rank, top in self.ranks():
            for net in _directories(top):
                for graph in _directories(net):
                    for place in _directories(graph):
                        if Path(graph).name.isdecimal() and Path(place).name.isdecimal():
                            self._scan_directory(place, rank, int(Path(graph).name), int(Path(place).name))

    def prune(self, moment: float) -> None:
        """Removes empty directories of older iterations; otherwise each scan would list the complete run.

        Keeps the newest two of each graph, and those written to in the last seconds: MindSpore may still use them."""
        for _, top in self.ranks():
            for net in _directories(top):
                for graph in _directories(net):
                    places = [Path(place) for place in _directories(graph) if Path(place).name.isdecimal()]
                    for place in sorted(places, key=lambda one: int(one.name))[:-2]:
                        try:
                            if place.stat().st_mtime < moment - _SETTLED:
                                place.rmdir()
                                self._seen_at.pop(str(place), None)
                        except OSError:
                            pass  # not empty

    def _scan_directory(self, directory: str, rank: int, graph: int, iteration: int) -> None:
        changed = Path(directory).stat().st_mtime_ns
        growing = any(path.startswith(directory + "/") for path in self._growing)
        if self._seen_at.get(directory) == changed and not growing:
            return
        self._seen_at[directory] = changed
        mapping: Optional[dict[str, str]] = None
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.path in self._known or not entry.name.endswith(".npy"):
                    continue
                self._growing.pop(entry.path, None)
                state = entry.stat(follow_symlinks=False)
                original = entry.name
                parsed = names.parse_tensor(original)
                if parsed is None:
                    mapping = names.read_mapping(Path(directory)) if mapping is None else mapping
                    original = mapping.get(entry.name) or mapping.get(entry.name[: -len(".npy")]) or ""
                    original = original if original.endswith(".npy") or not original else original + ".npy"
                    parsed = names.parse_tensor(original)
                if parsed is None or state.st_mode & stat.S_IWUSR:
                    self._growing[entry.path] = state.st_size
                    continue
                self._known[entry.path] = state.st_size
                place = (rank, graph, iteration, state.st_size)
                self._waiting.append(StagedFile(Path(entry.path), entry.name, original, parsed, *place))

    def operators(self, rank: int, graph: int) -> dict[str, OperatorDetails]:
        """The operators of a graph by their name in file names; empty if the graph cannot be read."""
        known = self._operators.setdefault(rank, {})
        if graph not in known:
            numbering = self._numbering.setdefault(rank, Numbering())
            folder = self.root / f"rank_{rank}" / GRAPHS
            listed = [match for path in folder.glob("*.ir") if (match := _GRAPH.fullmatch(path.name))]
            for match in sorted(listed, key=lambda match: int(match[1])):
                if int(match[1]) not in known and int(match[1]) <= graph:
                    known[int(match[1])] = numbering.name_operators(describe(self.text(rank, int(match[1]))))
            known.setdefault(graph, {})
        return known[graph]

    def text(self, rank: int, graph: int) -> str:
        """The text of the graph as MindSpore wrote it; empty if it cannot be read."""
        path = self.root / f"rank_{rank}" / GRAPHS / f"ms_output_trace_code_graph_{graph}.ir"
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


def _directories(parent: str | Path) -> list[str]:
    try:
        with os.scandir(parent) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."]
    except OSError:
        return []
