"""Inputs and outputs of modules, and their gradients.

Gradients come from hooks on the tensors, not on the modules: a full backward hook adds a function to the graph that
forbids in-place operations. So a gradient is that of the tensor, summed over all its uses. A tensor that one module
returns and the next one receives is measured once.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Callable

import torch

from msprobe.collect import notices
from msprobe.pytorch.watch.tensors import Gauge
from msprobe.watch.recording import Recording
from msprobe.watch.selection import Filter, plain_name
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import INPUT, INPUT_GRAD, OUTPUT, OUTPUT_GRAD, Target

_graph_task = torch._C._current_graph_task_id
_is_compiling = torch.compiler.is_compiling
_Tensor, _weak = torch.Tensor, weakref.ref
_GRADIENTS = {INPUT: INPUT_GRAD, OUTPUT: OUTPUT_GRAD}


class _Side:
    """The inputs or the outputs of one module, and the rows of its tensors in order."""

    __slots__ = ("follows", "gradient_rows", "kind", "name", "reads", "rows")

    def __init__(self, kind: str, name: str, kinds: frozenset[str]) -> None:
        self.kind, self.name = kind, name
        self.reads, self.follows = kind in kinds, _GRADIENTS[kind] in kinds
        self.rows: list[int] = []
        self.gradient_rows: list[int] = []


class ModuleHooks:
    """Hooks on all selected modules, installed only during watched steps."""

    def __init__(self, models: list[Any], recording: Recording, measure: Gauge, guarded: Callable[[Any], Any]) -> None:
        settings = recording.settings
        self._kinds = frozenset(settings.targets) & {INPUT, OUTPUT, INPUT_GRAD, OUTPUT_GRAD}
        self._recording, self._gauge, self._guarded = recording, measure, guarded
        self._came_guarded = guarded(self._came)
        chosen = Filter(settings)
        self._modules = [(name, module) for name, module in _named(models) if chosen.wants(name)] if self._kinds else []
        self._sides: dict[tuple[str, str], _Side] = {}
        self._seen: dict[int, tuple[Any, int, int]] = {}  # a tensor's or gradient's id: weak reference, version, row
        self._hooked: dict[int, tuple[Any, list[int]]] = {}  # a tensor's id: weak reference, rows of its gradient
        self._handles: list[Any] = []
        self._found = StepFigures(0)
        self._read_rows: set[int] = set()
        self._joined_rows: set[int] = set()
        self._sources: list[int] = []  # rows that wait to be copied,
        self._copies: list[int] = []  # and where to
        self._position = 0
        self._saw_any = False

    def install(self, found: StepFigures) -> None:
        self._found = found
        self._seen.clear()
        self._hooked.clear()
        self._read_rows.clear()
        self._joined_rows.clear()
        self._sources, self._copies = [], []
        self._position = 0
        if self._handles:
            return
        saw = self._guarded(self._saw)
        for name, module in self._modules:
            if self._kinds & {INPUT, INPUT_GRAD}:
                entered = functools.partial(saw, self._side(INPUT, name))
                self._handles.append(module.register_forward_pre_hook(entered, with_kwargs=True))
            if self._kinds & {OUTPUT, OUTPUT_GRAD}:
                returned = functools.partial(saw, self._side(OUTPUT, name))
                self._handles.append(module.register_forward_hook(returned))

    def _side(self, kind: str, name: str) -> _Side:
        side = self._sides.get((kind, name))
        if side is None:
            side = self._sides[kind, name] = _Side(kind, name, self._kinds)
        return side

    def keep(self, names: Iterable[str]) -> None:
        """Only these modules. A name may have the prefix of a pipeline stage, such as `0:`."""
        wanted = {name.rpartition(":")[2] for name in names}
        self._modules = [(name, module) for name, module in self._modules if name in wanted]
        if not self._modules:
            notices.warn_once(f"no module has a name that targets lists: {', '.join(sorted(wanted))}.")

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _saw(self, side: _Side, module: Any, args: Any, last: Any) -> None:
        """A module was entered or has returned; `last` has its keyword arguments, or its output."""
        if _is_compiling():
            return
        recomputed = _graph_task() >= 0  # gradient checkpointing runs the forward again, inside the backward
        tensors = _floats(last if side.kind is OUTPUT else (args, last) if last else args)
        for number, tensor in enumerate(tensors):
            if side.reads and not recomputed:
                if number == len(side.rows):
                    side.rows.append(self._row(side.kind, side.name, number, tensor))
                self._read(side.rows[number], tensor)
            if side.follows and tensor.requires_grad:
                while number >= len(side.gradient_rows):
                    place = len(side.gradient_rows)
                    side.gradient_rows.append(self._row(_GRADIENTS[side.kind], side.name, place, tensors[place]))
                self._follow(side.gradient_rows[number], tensor)

    def _read(self, row: int, tensor: Any) -> int:
        """Measures a tensor, or copies the figures that it has already. Returns the row that was measured."""
        if row in self._read_rows:  # another call of the module in this step
            self._copy_rows()
            self._joined_rows.add(row)
            self._gauge.read(tensor, self._found, row, True)
            return row
        self._read_rows.add(row)
        key, version = id(tensor), -1 if tensor.is_inference() else tensor._version  # it may change without a version
        known = self._seen.get(key)
        if known is not None and known[2] in self._joined_rows:  # its row has the figures of two calls by now
            known = None
        if known is not None and known[1] == version >= 0 and known[0]() is tensor and tensor.is_cpu:
            self._sources.append(known[2])
            self._copies.append(row)
            return known[2]
        self._gauge.read(tensor, self._found, row)
        self._seen[key] = (_weak(tensor), version, row)
        return row

    def _copy_rows(self) -> None:
        self._found.copy(self._sources, self._copies)
        self._sources, self._copies = [], []

    def _follow(self, row: int, tensor: Any) -> None:
        known = self._hooked.get(id(tensor))
        if known is not None and known[0]() is tensor:
            known[1].append(row)
            return
        rows = [row]
        tensor.register_hook(functools.partial(self._came_guarded, rows))
        self._hooked[id(tensor)] = (_weak(tensor), rows)

    def _came(self, rows: list[int], gradient: Any) -> None:
        if self._handles and gradient is not None:
            source = self._read(rows[0], gradient)
            for other in rows[1:]:
                self._read_rows.add(other)
                self._sources.append(source)
                self._copies.append(other)

    def _row(self, kind: str, name: str, number: int, tensor: Any) -> int:
        self._position += 1
        self._saw_any = True
        dtype = str(tensor.dtype).partition(".")[2]
        shown = name if not number else f"{name}.{number}" if name else str(number)
        return self._recording.row(Target(kind, shown, self._position, tuple(tensor.shape), dtype))

    def finish(self) -> None:
        """The step ends, and the devices have given their figures."""
        self._copy_rows()
        if self._modules and not self._saw_any:
            notices.warn_once(
                "no input or output of a module was seen: msprobe does not see modules inside torch.compile."
            )


def _named(models: list[Any]) -> Iterator[tuple[str, Any]]:
    from msprobe.pytorch.watch.parameters import unwrapped

    for number, model in enumerate(models):
        prefix = str(number) if len(models) > 1 else ""
        for name, module in unwrapped(model).named_modules():
            yield ".".join(part for part in (prefix, plain_name(name)) if part), module


def _floats(value: Any) -> list[Any]:
    """The float tensors that a module received or returned; most often there is one."""
    one = value[0] if type(value) is tuple and len(value) == 1 else value
    if type(one) is _Tensor:
        return [one] if one.is_floating_point() or one.is_complex() else []
    found: list[Any] = []
    _collect(value, found)
    return found


def _collect(value: Any, into: list[Any]) -> None:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() or value.is_complex():
            into.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, into)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, into)
