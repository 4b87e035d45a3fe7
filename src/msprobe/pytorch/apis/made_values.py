"""Where a value comes from that no recorded call produced: the views, indices and creations before it.

The mode sees these calls anyway. Each leaves an entry for the tensor that it returns: the function, its plain arguments
and the line; for tensors among its arguments their own entry, or a weak reference. Nothing is rendered before a
recorded call takes the tensor. No tensor and no object of the script is kept.
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import MethodWrapperType
from typing import Any, Callable, Optional, Union
from weakref import ref

import torch

from msprobe.collect.constructors import tensor_line
from msprobe.collect.records.recorder import Recorder
from msprobe.collect.records.values import quoted
from msprobe.dump.cells import name_of
from msprobe.dump.made_values import LONGEST, MOST, MOST_LINKS
from msprobe.pytorch.modules.model_tree import TreeModule
from msprobe.pytorch.tensors.tensor_text import TensorTexts

_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_PLAIN = frozenset((_Tensor, _Parameter))
_SHOWN = 8
"""Members of a list."""
_SIMPLE = frozenset((int, float, bool, str, complex, type(None), type(...), torch.dtype))
_INDEX = frozenset((int, type(None)))
_PLACES = frozenset(("device", "out", "layout", "pin_memory", "requires_grad", "generator", "memory_format"))
"""Keyword arguments that change no value."""
_TENSOR_PROPERTIES = frozenset(("T", "mT", "H", "mH", "real", "imag"))
_QUERIES = """
__bool__ __complex__ __contains__ __float__ __index__ __int__ __len__ __nonzero__ allclose data_ptr dense_dim dim
element_size equal get_device is_coalesced is_complex is_conj is_contiguous is_floating_point is_inference is_neg
is_nonzero is_pinned is_same_size is_set_to is_signed item ndimension nelement numel q_scale q_zero_point qscheme
record_stream result_type size sparse_dim storage_offset stride tolist type
"""
_FOLDERS = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).resolve().parents[2]}/", "<frozen ")


class _Link:
    """One call that is not recorded. `takes` are its tensors."""

    __slots__ = ("args", "depth", "file", "func", "function", "kwargs", "line", "number", "shape", "takes")

    args: tuple[Any, ...]
    kwargs: Optional[dict[str, Any]]
    shape: Sequence[int]
    file: str
    function: str
    line: int

    def __init__(self, func: Any) -> None:
        self.func = func
        self.depth = 0
        self.number = -1
        self.takes: list[Union[_Entry, Any]] = []


class _Entry:
    """A tensor that such a call returned, alone or at a `place` of several."""

    __slots__ = ("link", "place", "told", "which")

    def __init__(self, which: Any, link: _Link, place: int) -> None:
        self.which = which
        self.link = link
        self.place = place
        self.told = False


@functools.lru_cache(maxsize=2)
def queries(functions: frozenset[Any]) -> frozenset[Any]:
    """Those of these functions that return no tensor that is worth following."""
    names = frozenset(_QUERIES.split())
    return frozenset(func for func in functions if _is_query(func, names))


def _is_query(func: Any, names: frozenset[str]) -> bool:
    if isinstance(func, MethodWrapperType):
        return getattr(func.__self__, "__name__", "") not in _TENSOR_PROPERTIES
    return getattr(func, "__name__", "") in names


class _Hidden(dict[str, bool]):
    """Whether a file belongs to torch or to msprobe."""

    def __missing__(self, file: str) -> bool:
        hidden = self[file] = file.startswith(_FOLDERS)
        return hidden


_hidden = _Hidden()


class MadeValues:
    """The values of one step that no recorded call produced."""

    def __init__(self, recorder: Recorder, texts: TensorTexts) -> None:
        self._recorder = recorder
        self._texts = texts
        self.entries: dict[int, _Entry] = {}
        self._purge_at = 1024
        self._links: dict[tuple[Any, ...], int] = {}
        self._numbers = 0
        self._told = 0

    def note(self, func: Any, args: Sequence[Any], kwargs: Any, made: Any) -> None:
        """A call has returned that is not recorded."""
        try:
            kind = type(made)
            if kind in _PLAIN:
                if args and made is args[0]:
                    return
                entries = self.entries
                entries[id(made)] = _Entry(ref(made), self._link(func, args, kwargs, made), -1)
                if len(entries) > self._purge_at:
                    self._purge()
            elif kind is tuple or kind is list:
                link: Optional[_Link] = None
                for place, one in enumerate(made):
                    if type(one) in _PLAIN:
                        link = link or self._link(func, args, kwargs, one)
                        self.entries[id(one)] = _Entry(ref(one), link, place)
        except Exception:
            self._recorder.fault(getattr(func, "__name__", "torch function"), traceback.format_exc())

    def _link(self, func: Any, args: Sequence[Any], kwargs: Any, made: Any) -> _Link:
        link = _Link(func)
        keep = self._keep
        link.args = tuple([keep(value, link) for value in args])
        link.kwargs = {name: keep(kwargs[name], link) for name in kwargs if name not in _PLACES} if kwargs else None
        link.shape = made.shape
        frame: Any = sys._getframe(3)
        while frame.f_back is not None and _hidden[frame.f_code.co_filename]:
            frame = frame.f_back
        code = frame.f_code
        link.file, link.function, link.line = code.co_filename, code.co_name, frame.f_lineno
        return link

    def _keep(self, value: Any, link: _Link, depth: int = 3) -> Any:
        """An argument, without any tensor and without an object of the script."""
        kind = type(value)
        if kind in _SIMPLE:
            return value
        if kind in _PLAIN:
            entry = self.entries.get(id(value))
            if entry is None or entry.which() is not value:
                link.takes.append(ref(value))
            elif entry.link.depth + 1 < MOST_LINKS:
                link.depth = max(link.depth, entry.link.depth + 1)
                link.takes.append(entry)
            else:
                link.takes.append(None)
            return _TAKEN
        if kind is slice:
            if type(value.start) in _INDEX and type(value.stop) in _INDEX and type(value.step) in _INDEX:
                return value
            return _Slice(*(self._keep(part, link, 0) for part in (value.start, value.stop, value.step)))
        if (kind is tuple or kind is list or kind is torch.Size) and depth:
            shown = [self._keep(one, link, depth - 1) for one in value[:_SHOWN]]
            return _Several(len(value), shown, kind is tuple)
        return _Other(kind.__name__)

    def drop(self, args: Any, kwargs: Any) -> None:
        """A recorded call has written one of its arguments: what it was before says nothing about it."""
        if self.entries:
            if args:
                self.entries.pop(id(args[0]), None)
            if kwargs:
                self.entries.pop(id(kwargs.get("out")), None)

    def _purge(self) -> None:
        entries = self.entries
        for key in [key for key, entry in [*entries.items()] if entry.which() is None]:
            entries.pop(key, None)
        self._purge_at = max(1024, 2 * len(entries))

    def tell(self, name: str, args: Any, kwargs: Any) -> None:
        """A recorded call takes these arguments: writes where those come from that have not been taken before.

        Calls of an optimizer take parameters, gradients and its own state.
        """
        phases = self._recorder.phases
        if phases is not None and phases.inside:
            return
        entries = self.entries
        for place, value in enumerate(args):
            entry = entries.get(id(value))
            if entry is not None:
                if not entry.told and entry.which() is value:
                    self._tell(f"{name}.input.{place}", entry)
            elif type(value) is list or type(value) is tuple:
                for inner, one in enumerate(value):
                    entry = entries.get(id(one))
                    if entry is not None and not entry.told and entry.which() is one:
                        self._tell(f"{name}.input.{place}.{inner}", entry)
        for key, value in kwargs.items() if kwargs else ():
            entry = entries.get(id(value))
            if entry is not None and not entry.told and entry.which() is value:
                self._tell(f"{name}.input.{key}", entry)

    def _tell(self, slot: str, entry: _Entry) -> None:
        entry.told = True
        self._told += 1
        if self._told > MOST:
            if self._told == MOST + 1:
                self._recorder.writer.made('"cut": true')
            return
        number = self._number(entry.link)
        part = f', "part": {entry.place}' if entry.place >= 0 else ""
        self._recorder.writer.made(f'"slot": {quoted(slot)}, "value": {number}{part}')

    def _number(self, link: _Link) -> int:
        """The number of the value of a call, whose line is written before it is first used."""
        if link.number < 0:
            sources = []
            for taken in link.takes:
                if isinstance(taken, _Entry):
                    part = f', "part": {taken.place}' if taken.place >= 0 else ""
                    sources.append(f'{{"value": {self._number(taken.link)}{part}}}')
                else:
                    tensor = None if taken is None else taken()
                    sources.append("null" if tensor is None else self._texts.numbers(tensor))
            link.number, self._numbers = self._numbers, self._numbers + 1
            self._recorder.writer.made(
                f'"value": {link.number}, "link": {self._call(link)}, "shape": {[*link.shape]}, '
                f'"of": [{", ".join(sources)}]'
            )
            link.takes = []
        return link.number

    def _call(self, link: _Link) -> int:
        """The number of the call: its function, arguments and line, written once."""
        args = _text(link.args)
        if link.kwargs:
            named = ", ".join(f"{name}={_argument(value)}" for name, value in link.kwargs.items())
            args = f"{args}, {named}" if args else named
        key = (link.func, args, link.file, link.function, link.line)
        number = self._links.get(key)
        if number is None:
            number = self._links[key] = len(self._links)
            self._recorder.writer.made(
                f'"link": {number}, "api": {quoted(_name(link.func))}, "args": {quoted(args[:LONGEST])}, '
                f'"file": {quoted(name_of(link.file))}, "line": {link.line}, "function": {quoted(link.function)}',
                (name_of(link.file), link.line),
            )
        return number

    def tell_held(self, modules: Iterable[TreeModule]) -> None:
        """The tensors that modules of the model hold, by their qualified names, with the lines that make them."""
        try:
            for module in modules:
                held = vars(module.module)
                for kind, members in (("parameter", "_parameters"), ("buffer", "_buffers"), ("attribute", "")):
                    named = held.get(members) or {} if members else held
                    for name, tensor in [*named.items()]:
                        if type(tensor) in _PLAIN:
                            self._tell_one_held(module, name, tensor, kind)
        except Exception:
            self._recorder.fault("stop", traceback.format_exc())

    def _tell_one_held(self, module: TreeModule, name: str, tensor: Any, kind: str) -> None:
        memory = self._texts.memory(tensor)
        self._told += 1
        if memory is None or self._told > MOST:
            return
        around = type(module.module)
        place = None
        if kind != "parameter" and not around.__module__.startswith("torch."):
            place = tensor_line(around, name)
        made = ""
        if place is not None:
            file, line, function, text = place
            made = f', "file": {quoted(file)}, "line": {line}, "function": {quoted(function)}, "text": {quoted(text)}'
        title = quoted(f"{module.prefix}{name}")
        self._recorder.writer.made(f'"memory": {memory}, "name": {title}, "kind": "{kind}"{made}')

    def forget(self) -> None:
        self.entries.clear()


class _Taken:
    """A tensor among the arguments."""


class _Slice:
    __slots__ = ("parts",)

    def __init__(self, *parts: Any) -> None:
        self.parts = parts


class _Several:
    """A list or a tuple, with its first members."""

    __slots__ = ("is_tuple", "number", "shown")

    def __init__(self, number: int, shown: list[Any], is_tuple: bool) -> None:
        self.number = number
        self.shown = shown
        self.is_tuple = is_tuple


class _Other:
    """An object of which only the type is kept."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


_TAKEN = _Taken()


def _name(func: Callable[..., Any]) -> str:
    if isinstance(func, MethodWrapperType):
        return f"Tensor.{getattr(func.__self__, '__name__', '')}"
    name = str(getattr(func, "__name__", ""))[:LONGEST]
    return f"Tensor.{name}" if hasattr(func, "__objclass__") or hasattr(_Tensor, name) else f"torch.{name}"


def _text(args: Sequence[Any]) -> str:
    """The arguments after the tensor that the call is about."""
    rest = args[1:] if args and args[0] is _TAKEN else args
    return ", ".join(map(_argument, rest))


def _argument(value: Any) -> str:
    kind = type(value)
    if kind is _Taken:
        return "tensor"
    if kind is _Slice or kind is slice:
        parts = value.parts if kind is _Slice else (value.start, value.stop, value.step)
        start, stop, step = ("" if part is None else _argument(part) for part in parts)
        return f"{start}:{stop}" + (f":{step}" if step else "")
    if kind is _Several:
        more = ", …" if value.number > len(value.shown) else ""
        inner = ", ".join(map(_argument, value.shown)) + more
        return f"({inner})" if value.is_tuple else f"[{inner}]"
    if kind is _Other:
        return str(value.name)
    if value is ...:
        return "..."
    if kind is int and value.bit_length() > 64:
        return "int"
    return repr(value[:40] if kind is str else value)
