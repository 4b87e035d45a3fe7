"""Inputs and outputs of modules, and their gradients.

Gradients come through hooks on the tensors, not on the modules: a full backward hook would put a function into the
graph that forbids in-place operations. So a gradient is that of the tensor, from everybody who used it. A tensor that
one module returns and the next one receives is measured once.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Callable

import torch

from msprobe.collect import notices
from msprobe.pytorch.watch.tensors import Gauge
from msprobe.watch.recording import Recording
from msprobe.watch.selection import Filter, plain_name
from msprobe.watch.targets import INPUT, INPUT_GRAD, OUTPUT, OUTPUT_GRAD, Figures, Target

_graph_task = torch._C._current_graph_task_id
_GRADIENTS = {INPUT: INPUT_GRAD, OUTPUT: OUTPUT_GRAD}


class ModuleHooks:
    """Hooks on all chosen modules, there only for the steps that are watched."""

    def __init__(self, models: list[Any], recording: Recording, measure: Gauge, guarded: Callable[[Any], Any]) -> None:
        settings = recording.settings
        self._kinds = frozenset(settings.targets) & {INPUT, OUTPUT, INPUT_GRAD, OUTPUT_GRAD}
        self._recording, self._gauge, self._guarded = recording, measure, guarded
        chosen = Filter(settings)
        self._modules = [(name, module) for name, module in _named(models) if chosen.wants(name)] if self._kinds else []
        self._rows: dict[tuple[str, str, int], int] = {}
        self._seen: dict[int, tuple[Any, int, int]] = {}  # a tensor's id: weak reference, version, row
        self._hooked: dict[int, tuple[Any, list[int]]] = {}  # a tensor's id: weak reference, rows of its gradient
        self._handles: list[Any] = []
        self._found: dict[int, Figures] = {}
        self._position = 0

    def install(self, found: dict[int, Figures]) -> None:
        self._found = found
        self._seen.clear()
        self._hooked.clear()
        self._position = 0
        if self._handles:
            return
        for name, module in self._modules:
            if self._kinds & {INPUT, INPUT_GRAD}:
                hook = self._guarded(_Entered(self, name))
                self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
            if self._kinds & {OUTPUT, OUTPUT_GRAD}:
                self._handles.append(module.register_forward_hook(self._guarded(_Returned(self, name))))

    def keep(self, names: Iterable[str]) -> None:
        """Only these modules; the names of some may be given with prefixes such as `0:` of a pipeline stage."""
        wanted = {name.rpartition(":")[2] for name in names}
        self._modules = [(name, module) for name, module in self._modules if name in wanted]
        if not self._modules:
            notices.warn_once(f"no module has one of the names in targets: {', '.join(sorted(wanted))}.")

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def saw(self, kind: str, name: str, value: Any) -> None:
        if torch.compiler.is_compiling():
            return
        recomputed = _graph_task() >= 0  # gradient checkpointing runs the forward again, inside the backward
        for number, tensor in enumerate(_tensors(value)):
            if kind in self._kinds and not recomputed:
                self._read(kind, name, number, tensor)
            if _GRADIENTS[kind] in self._kinds and tensor.requires_grad:
                self._follow(_GRADIENTS[kind], name, number, tensor)

    def _read(self, kind: str, name: str, number: int, tensor: Any) -> None:
        row = self._row(kind, name, number, tensor)
        known = self._seen.get(id(tensor))
        version = tensor._version
        same = known is not None and known[0]() is tensor and known[1] == version
        if known is not None and same and known[2] in self._found and row not in self._found:
            self._found[row] = self._found[known[2]]
            return
        self._gauge.read(tensor, self._found, row, joined=True)
        self._seen[id(tensor)] = (weakref.ref(tensor), version, row)

    def _follow(self, kind: str, name: str, number: int, tensor: Any) -> None:
        row = self._row(kind, name, number, tensor)
        known = self._hooked.get(id(tensor))
        if known is not None and known[0]() is tensor:
            known[1].append(row)
            return
        rows = [row]

        def came(gradient: Any) -> None:
            if self._handles and gradient is not None:
                first, *others = rows
                self._gauge.read(gradient, self._found, first, joined=True)
                for other in others:
                    if first in self._found:
                        self._found[other] = self._found[first]

        tensor.register_hook(self._guarded(came))
        self._hooked[id(tensor)] = (weakref.ref(tensor), rows)

    def _row(self, kind: str, name: str, number: int, tensor: Any) -> int:
        key = (kind, name, number)
        row = self._rows.get(key)
        if row is None:
            self._position += 1
            dtype = str(tensor.dtype).partition(".")[2]
            shown = name if not number else f"{name}.{number}" if name else str(number)
            target = Target(kind, shown, self._position, tuple(tensor.shape), dtype)
            row = self._rows[key] = self._recording.row(target)
        return row

    def report(self) -> None:
        if self._modules and not self._rows:
            notices.warn_once(
                "no input or output of a module was seen: modules that run inside torch.compile are not visible."
            )


class _Entered:
    """A forward pre-hook; a class, so that it names its module without a closure a module."""

    def __init__(self, hooks: ModuleHooks, name: str) -> None:
        self._hooks, self._name = hooks, name

    def __call__(self, module: Any, args: Any, kwargs: Any) -> None:
        self._hooks.saw(INPUT, self._name, (args, kwargs))


class _Returned:
    def __init__(self, hooks: ModuleHooks, name: str) -> None:
        self._hooks, self._name = hooks, name

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        self._hooks.saw(OUTPUT, self._name, output)


def _named(models: list[Any]) -> Iterator[tuple[str, Any]]:
    from msprobe.pytorch.watch.parameters import unwrapped

    for number, model in enumerate(models):
        prefix = str(number) if len(models) > 1 else ""
        for name, module in unwrapped(model).named_modules():
            yield ".".join(part for part in (prefix, plain_name(name)) if part), module


def _tensors(value: Any) -> Iterator[Any]:
    """Float tensors in what a module received or returned."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() or value.is_complex():
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
