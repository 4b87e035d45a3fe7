"""The line that makes each module: `self.norm = nn.LayerNorm(width)` in the class of the module around it.

The setting of a module is repaired there; its calls show only where it is used. The lines are found in the text of the
class, so nothing of the script runs. Where more than one line may have made a module, or a different class stands there
(an adapter has replaced the module), none is given. A model itself is made by a line of the script.
"""

from __future__ import annotations

import dis
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType, FunctionType, ModuleType
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

_known: WeakKeyDictionary[type, dict[tuple[str, type, bool], Optional[_Place]]] = WeakKeyDictionary()
"""By the class around a module, the name of the module, its class, and whether it is in a list: each step has the same
modules."""


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
    for path, model in zip(list(classes), models):
        place = _place_in_script(model)
        if place is not None:
            found[path] = frame_text(*place)
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
    path, _, name = path.rpartition(".")
    is_list = name.isdecimal()
    while name.isdecimal():  # the line that makes the list of modules
        path, _, name = path.rpartition(".")
    around = classes.get(path)
    if around is None:
        return None
    known = _known.setdefault(around, {})
    if (name, made, is_list) not in known:
        known[name, made, is_list] = _search(around, name, made, is_list)
    return known[name, made, is_list]


def tensor_line(around: type, name: str) -> Optional[_Place]:
    """The line of a class that makes a tensor of its objects: its file, number, function and text."""
    known = _known.setdefault(around, {})
    if (name, type(None), False) not in known:
        lines = [place for kind in around.__mro__ for place, _ in _assignments(kind, name)]
        lines = [place for place in lines if not re.search(r"=\s*None\b", place[3])]  # there is no tensor yet
        known[name, type(None), False] = lines[0] if len(lines) == 1 else None
    return known[name, type(None), False]


def _search(around: type, name: str, made: type, is_list: bool) -> Optional[_Place]:
    """`is_list`: the line makes a list of modules, and this is one of them."""
    for kind in around.__mro__:
        found = list(_assignments(kind, name))
        if len(found) > 1:
            found = [one for one in found if re.search(rf"\b{re.escape(made.__name__)}\b", one[0][3])]
        if found:
            place, space = found[0]
            return place if len(found) == 1 and (is_list or _may_make(place[3], made, space)) else None
    return None


def _may_make(statement: str, made: type, space: Mapping[str, Any]) -> bool:
    """Whether a statement may make an object of this class: it calls the class, or something that is not known here.
    `self.module = module` makes nothing, and `nn.Linear(…)` not the adapter that stands there now."""
    value = statement.partition("=")[2]
    while (again := re.match(r"\s*self\.\w+\s*=(?!=)", value)) is not None:
        value = value[again.end() :]
    if re.fullmatch(r"\s*\w+\s*(#.*)?", value):
        return False
    called = [_named(words, space) for words in re.findall(r"([A-Za-z_][\w.]*)\s*\(", value)]
    return not called or any(not isinstance(one, type) or issubclass(made, one) for one in called)


def _named(words: str, space: Mapping[str, Any]) -> object:
    """What a dotted name means in a module, without running anything; None if that is not known."""
    first, *rest = words.split(".")
    found = space.get(first)
    for name in rest:
        found = vars(found).get(name) if isinstance(found, ModuleType) else None
    return found


def _place_in_script(model: object) -> Optional[_Place]:
    """The line of the script that binds the model to its name, the last that has run, or the only one that calls its
    class."""
    script = vars(sys.modules["__main__"])
    file = script.get("__file__")
    if not isinstance(file, str):
        return None
    lines = lines_of(file)[: _line_of_script(script)]
    names = [re.escape(name) for name, value in list(script.items()) if value is model]
    bound = rf"({'|'.join(names)})\s*(,[^=]+|:[^=]+)?=(?!=)"
    called = rf"(?!\s*(class|def|#|import|from)\b).*\b{re.escape(type(model).__name__)}(\.\w+)?\("
    found = _matching(bound, lines)[-1:] if names else []
    for pattern in (rf"\s+{bound}", called) if names else (called,):
        found = found or [*_matching(pattern, lines)]
    if len(found) != 1:
        return None
    (line,) = found
    function = "" if lines[line - 1][:1].isspace() else "<module>"
    return name_of(file), line, function, _statement(lines[line - 1 :])


def _matching(pattern: str, lines: Sequence[str]) -> list[int]:
    wanted = re.compile(pattern)
    return [number for number, line in enumerate(lines, 1) if wanted.match(line)]


def _line_of_script(script: Mapping[str, Any]) -> Optional[int]:
    """How far the script has come; None if its top level is not on the stack of this thread."""
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None and (frame.f_globals is not script or frame.f_code.co_name != "<module>"):
        frame = frame.f_back
    return None if frame is None else frame.f_lineno


def _assignments(kind: type, name: str) -> Iterator[tuple[_Place, Mapping[str, Any]]]:
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
                place = name_of(code.co_filename), number, code.co_name, _statement(lines[number - 1 :])
                yield place, function.__globals__


def _statement(lines: list[str]) -> str:
    """A line, with those after it that its brackets need."""
    text = ""
    for line in lines[:_CONTINUED]:
        text += (" " if text.endswith(",") else "") + line.strip()
        if sum(map(text.count, "([{")) <= sum(map(text.count, ")]}")):
            break
    return re.sub(r",\s*(?=[)\]}])", "", text)[:LONGEST]
