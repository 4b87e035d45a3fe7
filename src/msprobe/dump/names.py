r"""The grammar of record names: the one place that builds and parses them.

| record | name |
|---|---|
| an API | `{prefix}.{api}.{n}.{forward\|backward}` |
| a module | `{Module\|Cell}.{path}.{Class}.{forward\|backward}.{n}` |
| gradients of parameters | `{Module\|Cell}.{path}.{Class}.parameters_grad` |
| a value saved by the user | `{name}.{n}.debug` |
| an operator of a graph | `{name}-op{id}`, `#2` for its second run |

n counts the calls of one API, or of one module, in a step.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

FORWARD = "forward"
BACKWARD = "backward"
PARAMETERS_GRAD = "parameters_grad"
DEBUG = "debug"
MODULE_PREFIXES = ("Module", "Cell")
_DIRECTIONS = (FORWARD, BACKWARD)
_MODULES = tuple(f"{prefix}." for prefix in MODULE_PREFIXES)
_LONGEST_NUMBER = 18  # digits of an int64
_OPERATOR = re.compile(r"(.+)-op(\d{1,18})(?:#\d+)?\Z")
_API = re.compile(r"([A-Za-z_]\w*)\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.(\d{1,18})\.(forward|backward)\Z", re.ASCII)


class Name(NamedTuple):
    """A parsed record name. `kind` is api, module, grads, debug or other.

    `key` is the name without number and direction: `Functional.relu`, `Module.layers.0.fc.Linear`.
    """

    kind: str
    key: str
    number: int
    direction: str


class ApiName(NamedTuple):
    """The name of an API record, in the strict form that is used to look up a callable."""

    prefix: str
    api: str
    number: int
    direction: str

    @property
    def title(self) -> str:
        """`Functional.conv2d`: the key of the table of callables."""
        return f"{self.prefix}.{self.api}"

    @property
    def call(self) -> str:
        """`Functional.conv2d.0`: the call's name in the results of run_ut."""
        return f"{self.title}.{self.number}"


def parse_name(name: str) -> Name:
    """Parses any record name. A name that follows no rule is of kind "other"."""
    head, _, last = name.rpartition(".")
    if not head:
        return _parse_operator(name)
    if last in _DIRECTIONS:
        return Name("api", *_split_number(head), last)
    if last == PARAMETERS_GRAD:
        return Name("grads", head, 0, PARAMETERS_GRAD)
    if last == DEBUG:
        return Name("debug", *_split_number(head), DEBUG)
    if _is_number(last):
        key, _, direction = head.rpartition(".")
        if key and direction in _DIRECTIONS:
            return Name("module" if is_module(key) else "api", key, int(last), direction)
        if key and direction == PARAMETERS_GRAD:
            return Name("grads", key, int(last), PARAMETERS_GRAD)
    return _parse_operator(name)


def parse_api_name(name: str) -> Optional[ApiName]:
    """Parses the name of an API record. None for modules, parameter gradients and malformed names."""
    found = _API.match(name)
    if found is None or found[1] in MODULE_PREFIXES:
        return None
    return ApiName(found[1], found[2], int(found[3]), found[4])


def split_slot(slot: str) -> tuple[str, str]:
    """`Functional.conv2d.0.forward.output.0` -> (`Functional.conv2d.0`, `forward`)."""
    for direction in _DIRECTIONS:
        call, found, _ = slot.rpartition(f".{direction}.")
        if found:
            return call, direction
    return slot, FORWARD


def is_module(name: str) -> bool:
    """Whether a record, or the key of one, belongs to a module (on MindSpore a Cell)."""
    return name.startswith(_MODULES)


def module_path(key: str) -> str:
    """`Module.layers.0.fc.Linear` -> `layers.0.fc`: the path in the model, without prefix and class."""
    return key.rpartition(".")[0].partition(".")[2]


def general_name(key: str) -> str:
    """The name of a module without the numbers in its path: `Module.blocks.*.norm.LayerNorm`."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", key)


def module_class(key: str) -> str:
    """`Module.layers.0.fc.Linear` -> `Linear`."""
    return key.rpartition(".")[2]


def callee_of(name: str) -> str:
    """`Tensor.add.0.forward` -> `add`, `Module.fc.Linear.forward.0` -> `Linear`."""
    parts = name.split(".")
    return parts[-3] if len(parts) > 2 else name


def api_stem(name: str) -> str:
    """`Functional.relu.0.forward` -> `Functional.relu.0`."""
    return name.rpartition(".")[0]


def backward_of(name: str) -> str:
    """The backward name of a forward call, for APIs and modules alike."""
    return _with_direction(name, FORWARD, BACKWARD)


def forward_of(name: str) -> str:
    """The forward name of a backward call, for APIs and modules alike."""
    return _with_direction(name, BACKWARD, FORWARD)


def _with_direction(name: str, old: str, new: str) -> str:
    head, _, last = name.rpartition(".")
    if last == old:
        return f"{head}.{new}"
    stem, _, direction = head.rpartition(".")
    return f"{stem}.{new}.{last}" if direction == old else name


def _split_number(head: str) -> tuple[str, int]:
    key, _, number = head.rpartition(".")
    return (key, int(number)) if key and _is_number(number) else (head, 0)


def _is_number(text: str) -> bool:
    return len(text) <= _LONGEST_NUMBER and text.isascii() and text.isdigit()


def _parse_operator(name: str) -> Name:
    """Parses the name of an operator of a graph. Its id (`Conv2D-op12`) differs between compilations."""
    found = _OPERATOR.match(name)
    return Name("api", found[1], int(found[2]), FORWARD) if found else Name("other", name, 0, FORWARD)
