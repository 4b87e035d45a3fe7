"""Modules (level L0 and mix): the path of a call between the two hooks of a module, and the modules around it.

The backward of a module is read from the graph, like that of an API (collect/gradients).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import Any, Optional

from msprobe.collect.gradients.call_gradients import RECOMPUTED, CallGradients
from msprobe.collect.records.recorder import Recorder
from msprobe.collect.records.values import key_text
from msprobe.dump.names import FORWARD


class _ModuleCall:
    """One call of a module, between its two hooks."""

    __slots__ = ("call", "error", "inputs", "name", "parents", "title")

    def __init__(self, title: str, name: str, parents: list[str], error: Optional[BaseException]) -> None:
        self.title = title
        self.name = name
        self.parents = parents
        self.error = error
        self.call: Optional[int] = None
        self.inputs: Any = None


class _OpenCalls(threading.local):
    """The modules that are running in this thread, outermost first."""

    def __init__(self) -> None:
        self.open: list[_ModuleCall] = []


class ModuleCalls:
    """Records the calls of modules. A frontend installs the hooks, which call `_enter` and `_leave`."""

    def __init__(self, recorder: Recorder, gradients: CallGradients) -> None:
        self._recorder = recorder
        self._gradients: Any = gradients
        self._calls = _OpenCalls()

    def _parameters_of(self, module: Any) -> Mapping[str, Any]:
        """The parameters that belong to the module itself; they are part of its record."""
        raise NotImplementedError

    def _enter(self, title: str, parents: list[str], args: Any, kwargs: Any) -> str:
        """A module is called inside `parents`. Returns the name of the call."""
        recorder = self._recorder
        name = f"{title}.{FORWARD}.{recorder.numbers.take(title)}"
        call = _ModuleCall(title, name, parents, sys.exc_info()[1])
        self._calls.open.append(call)
        recorder.push(name)
        if recorder.phases is not None and recorder.phases.between:
            recorder.phases.begin_module()
        if recorder.on_first_batch is not None:
            recorder.first_batch(args, kwargs)
        selection = recorder.selection
        wanted = selection.everything or selection.enter(name, parents)
        if wanted and selection.forward:
            call.call = recorder.enter(name, parents[-1] if parents else None, args, kwargs, 2)
        if selection.backward and self._gradients.differentiates():
            call.inputs = self._gradients.inputs(args, kwargs)
        return name

    def _leave(self, title: str, module: Any, output: Any) -> None:
        recorder = self._recorder
        calls = self._calls.open
        if not calls or calls[-1].title != title:
            if not any(call.title == title for call in calls):
                return  # entered before the hooks were installed
            while calls[-1].title != title:  # also ends calls that an exception left open
                calls.pop()
        call = calls.pop()
        recorder.pop(call.name)
        error = sys.exc_info()[1]
        failed = error is not None and error is not call.error
        if call.call is not None:
            gradients = self._gradients
            extra = RECOMPUTED if gradients.running_pass() >= 0 and gradients.recomputes() else ""
            if failed:
                assert error is not None
                recorder.fail(call.call, error, extra)
            else:
                recorder.leave(call.call, call.name, output, self._with_parameters(call.name, module, extra))
        if not recorder.selection.everything:
            recorder.selection.leave(call.name)
        if call.inputs is not None and output is not None and not failed:
            self._gradients.watch(call.name, call.parents, call.inputs, output)

    def _with_parameters(self, name: str, module: Any, extra: str) -> str:
        """`extra`, after the parameters of the module."""
        recorder = self._recorder
        parameters = self._parameters_of(module) if recorder.with_inputs else None
        if not parameters:
            return extra
        path = recorder.tensors_path(name, "parameters")
        value = recorder.values.value
        members = [
            f"{key_text(key)}: {value(parameter, f'{path}.{key}' if path else '')}"
            for key, parameter in parameters.items()
            if parameter is not None
        ]
        text = f'"parameters": {{{", ".join(members)}}}'
        return f"{text}, {extra}" if extra else text


class ModulePlaces(ModuleCalls):
    """Records no module. Its hooks only say which modules run, for the calls inside them (level L2)."""

    def _enter(self, title: str, parents: list[str], args: Any, kwargs: Any) -> str:
        recorder = self._recorder
        name = f"{title}.{FORWARD}.{recorder.numbers.take(title)}"
        recorder.push(name)
        if recorder.on_first_batch is not None:
            recorder.first_batch(args, kwargs)
        return name

    def _leave(self, title: str, module: Any, output: Any) -> None:
        start = f"{title}.{FORWARD}."
        for name in reversed(self._recorder.parents):
            if name.startswith(start):
                self._recorder.pop(name)
                break
