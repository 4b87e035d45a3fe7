"""Cells (level L0 and mix): forward pre- and post-hooks on every Cell below the model.

The hooks are put into the Cells' own tables rather than registered: registering tells MindSpore to
compile every `jit` function anew, at every start and stop, for hooks that compiled code never runs.
The backward of a Cell is read off the graph like that of an API (gradients.py), so that Cells with
dict or mixed outputs have one too.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

from msprobe.collect.recorder import Recorder
from msprobe.dump.names import FORWARD
from msprobe.mindspore.executor import backward_pass, requires_grad
from msprobe.mindspore.gradients.backward_graph import AVAILABLE, Inputs
from msprobe.mindspore.gradients.call_gradients import Gradients

_KEY = "msprobe"
_RECOMPUTE = "_recompute_cell"  # MindSpore's own wrapping of a Cell that is recomputed


class Models(list[Any]):
    """Models that the user gave as a list or tuple: their place in it is part of their Cells' names."""


class Named(NamedTuple):
    """A Cell, what its records are called, and what those of the Cell around it are."""

    title: str
    cell: Any
    around: Optional[str]


def is_compiled(cell: Any) -> bool:
    """Whether a Cell's construct is under `jit` in ast mode: nothing inside it runs as Python."""
    construct = cell.construct
    return hasattr(construct, "__wrapped_by_jit__") and hasattr(construct, "__jit_graph_name__")


def named_below(models: Sequence[Any], inside: bool = False) -> Iterator[Named]:
    """Every Cell below the models. A shared Cell has its first path.

    A compiled one hides what is inside it, unless the `inside` of graphs is asked for.
    """
    seen: set[int] = set()
    for index, model in enumerate(models):
        start = f"Cell.{index}" if isinstance(models, Models) else "Cell"
        waiting: list[tuple[str, Any, Optional[str]]] = [("", model, None)]
        while waiting:
            path, cell, around = waiting.pop()
            if id(cell) in seen:
                continue
            seen.add(id(cell))
            compiled = is_compiled(cell)
            title = f"{start}.{path}.{type(cell).__name__}" if path else f"{start}.{type(cell).__name__}"
            if path or compiled:
                yield Named(title, cell, around)
            if inside or not compiled:
                inner = title if path or compiled else None
                for name, child in reversed(cell._cells.items()):
                    if child is not None and name != _RECOMPUTE:
                        waiting.append((f"{path}.{name}" if path else name, child, inner))


class _Call:
    """One call of a Cell, between its two hooks."""

    __slots__ = ("call", "error", "inputs", "name", "parents")

    def __init__(self, name: str, parents: list[str], error: Any) -> None:
        self.name = name
        self.parents = parents
        self.error = error
        self.call: Optional[int] = None
        self.inputs: Optional[Inputs] = None


class _Calls(threading.local):
    """The Cells that this thread is inside of."""

    def __init__(self) -> None:
        self.open: list[_Call] = []


class Cells:
    """Installs the hooks on the models of one step and takes them off again."""

    def __init__(self, recorder: Recorder, gradients: Gradients, cells: Sequence[Named]) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._hooks = [(named.cell, self._pre_hook(named), self._post_hook(named.title)) for named in cells]
        self._calls = _Calls()
        self._latest: dict[str, str] = {}

    def install(self) -> None:
        for cell, enter, leave in self._hooks:
            cell._forward_pre_hook[_KEY] = enter
            cell._forward_pre_hook_with_kwargs[_KEY] = True
            cell._forward_hook[_KEY] = leave
            cell._forward_hook_with_kwargs[_KEY] = True
            cell._forward_hook_always_called[_KEY] = True

    def remove(self) -> None:
        for cell, _, _ in self._hooks:
            for table in (
                cell._forward_pre_hook,
                cell._forward_pre_hook_with_kwargs,
                cell._forward_hook,
                cell._forward_hook_with_kwargs,
                cell._forward_hook_always_called,
            ):
                table.pop(_KEY, None)

    def _pre_hook(self, named: Named) -> Any:
        recorder, title, around = self._recorder, named.title, named.around
        selection = recorder.selection

        def enter(cell: Any, args: Any, kwargs: Any) -> None:
            if recorder.closed:
                return
            try:
                name = f"{title}.{FORWARD}.{recorder.numbers.take(title)}"
                parents = list(recorder.parents)
                if not parents and around is not None and around in self._latest and backward_pass() >= 0:
                    parents = [self._latest[around]]  # recomputed: the Cell around it is not called again
                call = _Call(name, parents, sys.exc_info()[1])
                self._calls.open.append(call)
                self._latest[title] = name
                recorder.push(name)
                if recorder.on_first_batch is not None:
                    recorder.first_batch(args, kwargs)
                wanted = selection.everything or selection.enter(name, parents)
                if wanted and selection.forward:
                    call.call = recorder.enter(name, parents[-1] if parents else None, args, kwargs)
                if selection.backward and AVAILABLE and requires_grad():
                    call.inputs = self._gradients.inputs(args, kwargs)
            except Exception:
                recorder.fault(title, traceback.format_exc())

        return enter

    def _post_hook(self, title: str) -> Any:
        recorder = self._recorder

        def leave(cell: Any, args: Any, kwargs: Any, output: Any) -> None:
            if recorder.closed:
                return
            try:
                self._leave(title, cell, output)
            except Exception:
                recorder.fault(title, traceback.format_exc())

        return leave

    def _leave(self, title: str, cell: Any, output: Any) -> None:
        recorder = self._recorder
        calls = self._calls.open
        start = f"{title}.{FORWARD}."
        if not any(call.name.startswith(start) for call in calls):
            return  # entered before the hooks were there
        while True:  # what an exception left open inside ends here too
            call = calls.pop()
            if call.name.startswith(start):
                break
        recorder.pop(call.name)
        error = sys.exc_info()[1]
        failed = error is not None and error is not call.error
        if call.call is not None:
            extra = '"is_recompute": true' if backward_pass() >= 0 else ""
            if failed:
                recorder.fail(call.call, error, extra)  # type: ignore[arg-type]
            else:
                recorder.leave(call.call, call.name, output, self._with_parameters(call.name, cell, extra))
        if not recorder.selection.everything:
            recorder.selection.leave(call.name)
        if call.inputs is not None and output is not None and not failed:
            self._gradients.watch(call.name, call.parents, call.inputs, output)
        if not recorder.parents:
            self._gradients.forget_graph()

    def _with_parameters(self, name: str, cell: Any, extra: str) -> str:
        recorder = self._recorder
        if not recorder.with_inputs or not cell._params:
            return extra
        path = recorder.tensors_path(name, "parameters")
        named = {key: value for key, value in cell._params.items() if value is not None}
        text = f'"parameters": {recorder.values.mapping(named, path)}'
        return f"{text}, {extra}" if extra else text
