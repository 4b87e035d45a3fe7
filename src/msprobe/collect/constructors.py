"""The line that makes each module: `self.norm = nn.LayerNorm(width)` in the class of the module around it.

The setting of a module is repaired there; its calls show only where it is used. The lines are found in the text of the
class, so nothing of the script runs. Where more than one line may have made a module, none is given.
"""

from __future__ import annotations

import dis
import inspect
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, Callable, Optional
from weakref import WeakKeyDictionary

from msprobe.collect.parallel import RunHeader
from msprobe.dump.cells import lines_of, name_of
from msprobe.dump.names import general_name
from msprobe.dump.stack_frames import frame_text

MOST = 1000
LONGEST = 400
_CONTINUED = 6
_Place = tuple[str, int, str, str]

_known: WeakKeyDictionary[type, dict[tuple[str, str], Optional[_Place]]] = WeakKeyDictionary()
"""By the class around a module, the name of the module and its class: each step has the same modules."""


def note_constructors(
    header: RunHeader,
    models: Sequence[Any],
    prefix: str,
    named: Iterable[tuple[str, Any]],
    fault: Callable[[str, str], None],
) -> None:
    """Adds the lines to run.json."""
    try:
        header.add({"made": made_lines(models, prefix, named)})
    except Exception:
        fault("start", traceback.format_exc())


def made_lines(models: Sequence[Any], prefix: str, named: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """The frames of the lines, by the general names of the modules; `named` has a module before those in it."""
    classes = {f"{prefix}.{number}": type(model) for number, model in enumerate(models)}
    if len(models) == 1:
        classes = {prefix: type(models[0])}
    found: dict[str, str] = {}
    for title, module in named:
        path = title.rpartition(".")[0]
        classes[path] = type(module)
        key = general_name(title)
        if key not in found and len(found) < MOST:
            place = _place_of(path, type(module), classes)
            if place is not None:
                found[key] = frame_text(*place)
    return found


def _place_of(path: str, made: type, classes: Mapping[str, type]) -> Optional[_Place]:
    while True:
        path, _, name = path.rpartition(".")
        if not name.isdecimal():  # a number: the line that makes the list of modules
            break
    around = classes.get(path)
    if around is None:
        return None
    known = _known.setdefault(around, {})
    if (name, made.__name__) not in known:
        known[name, made.__name__] = _search(around, name, made.__name__)
    return known[name, made.__name__]


def tensor_line(around: type, name: str) -> Optional[_Place]:
    """The line of a class that makes a tensor of its objects: its file, number, function and text."""
    known = _known.setdefault(around, {})
    if (name, "") not in known:
        lines = [place for kind in around.__mro__ for place in _assignments(kind, name)]
        lines = [place for place in lines if not re.search(r"=\s*None\b", place[3])]  # there is no tensor yet
        known[name, ""] = lines[0] if len(lines) == 1 else None
    return known[name, ""]


def _search(around: type, name: str, made: str) -> Optional[_Place]:
    for kind in around.__mro__:
        found = list(_assignments(kind, name))
        if len(found) > 1:
            found = [place for place in found if re.search(rf"\b{re.escape(made)}\b", place[3])]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _assignments(kind: type, name: str) -> Iterator[_Place]:
    wanted = re.compile(
        rf"\s*(self\.\w+\s*[,=]\s*)*self\.{re.escape(name)}\s*([,=]\s*self\.\w+\s*)*(:[^=]+)?=(?!=)"
        rf"|\s*self\.(add_module|register_module|register_buffer|insert_child_to_cell)\(\s*['\"]{re.escape(name)}['\"]"
    )
    for member in vars(kind).values():
        function = inspect.unwrap(member) if isinstance(member, FunctionType) else None
        if not isinstance(function, FunctionType):
            continue
        code = function.__code__
        lines = lines_of(code.co_filename)
        last = max((line for _, line in dis.findlinestarts(code) if line), default=0)
        for number in range(code.co_firstlineno, min(last, len(lines)) + 1):
            if wanted.match(lines[number - 1]):
                yield name_of(code.co_filename), number, code.co_name, _statement(lines[number - 1 :])


def _statement(lines: list[str]) -> str:
    """A line, with those after it that its brackets need."""
    text = ""
    for line in lines[:_CONTINUED]:
        text += (" " if text.endswith(",") else "") + line.strip()
        if sum(map(text.count, "([{")) <= sum(map(text.count, ")]}")):
            break
    return text[:LONGEST]
