"""What each selector of config.json must collect, computed from a dump of the same run without any selector.

The table of tests is the same for both frameworks: every selector alone, at every level, in every mode, for every task
(tests/pytorch/test_selectors.py, tests/mindspore/test_selectors.py).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import pytest

GRADIENTS = ".parameters_grad"


class Records:
    """The records of one rank directory, in completion order."""

    def __init__(self, directory: Path) -> None:
        self.data: dict[str, Any] = json.loads((directory / "dump.json").read_text())["data"]
        self.names = list(self.data)
        self._parents: dict[str, Any] = json.loads((directory / "construct.json").read_text())
        files = directory / "dump_tensor_data"
        self.files = {path.name for path in files.iterdir()} if files.is_dir() else set()

    def above(self, name: str) -> list[str]:
        """The calls around one. Around the gradients of parameters are modules, without a call."""
        if name.endswith(GRADIENTS):
            place = name[: -len(GRADIENTS)].rpartition(".")[0]
            titles = {other.rpartition(".")[0].rpartition(".")[0] for other in (*self.names, *self._parents)}
            return [title for title in titles if "." in title and place.startswith(title.rpartition(".")[0] + ".")]
        found = []
        parent = self._parents.get(name)
        while parent:
            found.append(parent)
            parent = self._parents.get(parent)
        return found

    def saved_names(self) -> set[str]:
        """The files that the records name."""
        found: set[str] = set()

        def walk(value: Any) -> None:
            if isinstance(value, dict):
                if isinstance(value.get("data_name"), str):
                    found.add(value["data_name"])
                for member in value.values():
                    walk(member)
            elif isinstance(value, list):
                for member in value:
                    walk(member)

        walk(self.data)
        return found

    def begin(self, name: str) -> tuple[int, int]:
        """Where a call begins: a module begins before the first call inside it."""
        inside = [at for at, other in enumerate(self.names) if other == name or name in self.above(other)]
        return min(inside), len(self.above(name))


def is_backward(name: str) -> bool:
    return name.endswith(GRADIENTS) or "backward" in name.split(".")[-2:]


def listed(entry: str) -> Callable[[Records], list[str]]:
    def names(full: Records) -> list[str]:
        return [name for name in full.names if any(_is_named(entry, one, name) for one in (name, *full.above(name)))]

    return names


def _is_named(entry: str, one: str, name: str) -> bool:
    """Whether an entry names `one`, which is `name` or a call around it."""
    written = re.fullmatch(r"name-regex\((.*)\)", entry)
    if written:
        return re.match(written[1], one) is not None
    if "." in entry:
        return one == entry or one.startswith(entry + ".")
    parts = one.split(".")[1:]
    return one == name and entry in ".".join(parts[:-1] if one.endswith(GRADIENTS) else parts[:-2])


def ranged(first: str, last: str) -> Callable[[Records], list[str]]:
    """Gradients of parameters come after the backward of all calls: no scope of this table has them."""

    def names(full: Records) -> list[str]:
        begin, end = full.begin(first), full.begin(last)
        calls = [name for name in full.names if not name.endswith(GRADIENTS)]
        return [name for name in calls if begin <= full.begin(name) <= end or last in full.above(name)]

    return names


def of_modes(*modes: str) -> Callable[[Records], list[str]]:
    def names(full: Records) -> list[str]:
        found = full.names
        if "forward" in modes or "backward" in modes:
            found = [name for name in found if ("backward" if is_backward(name) else "forward") in modes]
        without_outputs = "input" in modes and "output" not in modes
        return [name for name in found if not (without_outputs and name.endswith(GRADIENTS))]

    return names


@dataclass(frozen=True)
class Selector:
    """One selector alone: its section of config.json, and the names that it selects."""

    label: str
    section: dict[str, Any]
    names: Callable[[Records], list[str]]

    @property
    def sides(self) -> set[str]:
        """The sides of a call that are recorded."""
        modes = set(self.section.get("data_mode", ()))
        return modes & {"input", "output"} or {"input", "output"}


def by_list(label: str, entry: str) -> Selector:
    return Selector(f"list: {label}", {"list": [entry]}, listed(entry))


def by_scope(label: str, first: str, last: str) -> Selector:
    return Selector(f"scope: {label}", {"scope": [first, last]}, ranged(first, last))


def by_modes(*modes: str) -> Selector:
    return Selector(f"data_mode: {' '.join(modes)}", {"data_mode": list(modes)}, of_modes(*modes))


MODES = [by_modes(*modes) for modes in (("forward",), ("backward",), ("input",), ("output",), ("backward", "output"))]


def marks_of(task: str, selector: Selector) -> list[pytest.MarkDecorator]:
    """All of the table takes minutes. Without the slow part: all selectors of statistics, the scopes of tensor."""
    quick = task == "statistics" or (task == "tensor" and "scope" in selector.section)
    return [] if quick else [pytest.mark.slow]


def assert_selected(found: Records, full: Records, selector: Selector, task: str) -> None:
    """The dump has the records that the selector means, their sides, and a file for each tensor that they name."""
    expected = selector.names(full)
    assert found.names == expected, (found.names, expected)
    if task == "structure":
        return
    for name in expected:
        members = {key.partition("_")[0] for key in found.data[name]} & {"input", "output"}
        assert members <= selector.sides, (name, list(found.data[name]))
        for key, value in full.data[name].items():
            side = "output" if name.endswith(GRADIENTS) else key.partition("_")[0]
            if side in selector.sides:
                assert _plain(found.data[name][key]) == _plain(value), (name, key)
    assert found.files == (found.saved_names() if task == "tensor" else set())


def _plain(value: Any) -> Any:
    """Without the names of files and the numbers of values and memories, which count what is recorded."""
    if isinstance(value, dict):
        kept = {key: member for key, member in value.items() if key not in ("data_name", "value_id", "memory")}
        return {key: _plain(member) for key, member in kept.items()}
    return [_plain(member) for member in value] if isinstance(value, list) else value
