"""Kernels (level L2, dynamic graph): operators through MindSpore's dispatch mode, forward and backward.

The mode is blind where the framework differentiates in C++. Operators of the older kind (LayerNorm, BiasAdd, Conv2D
through a Primitive) have a node of the backward graph when we see them: their gradients are read off it. For
the rest, what stays unseen is told once.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any, Callable, Optional

from msprobe.collect import notices
from msprobe.collect.names import BACKWARD, FORWARD
from msprobe.collect.recorder import Recorder

from .apis import Api, Apis
from .backward_graph import AVAILABLE
from .cells import Cells, Named
from .executor import backward_pass, requires_grad
from .gradients import Gradients

try:
    from mindspore.utils import MsDispatchMode
except ImportError:  # before MindSpore 2.8
    MsDispatchMode = None

HAS_DISPATCH = MsDispatchMode is not None
_NO_PARENTS: tuple[str, ...] = ()
_BLIND = frozenset(("Softmax", "LogSoftmax", "Conv2D", "BatchNorm", "LayerNorm", "MaxPool", "AvgPool", "BiasAdd"))


def _mode(recorder: Recorder, gradients: Gradients) -> Any:
    """The mode of one step. Made here because its base class is not there in every version."""

    class Mode(MsDispatchMode):
        def __ms_dispatch__(self, func: Any, args: Any = (), kwargs: Any = None) -> Any:
            return kernels.call(func, args, kwargs or {})

    kernels = _Kernels(recorder, gradients)
    return Mode()


class _Kernels:
    def __init__(self, recorder: Recorder, gradients: Gradients) -> None:
        self._recorder = recorder
        self._gradients = gradients

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        if recorder.closed:
            return func(*args, **kwargs)
        old = len(args) == 3 and isinstance(args[1], str) and isinstance(args[2], (tuple, list))
        shown = args[2] if old else args  # the older kind: (primitive, its name, the arguments)
        parents: Sequence[str] = recorder.parents
        direction = FORWARD
        if backward_pass() >= 0 and not parents:  # inside a Cell or an API a backward pass recomputes
            direction, parents = BACKWARD, _NO_PARENTS
        title = f"Kernel.{func.name}"
        name = f"{title}.{recorder.numbers.take(f'{title}.{direction}')}.{direction}"
        call, inputs = self._enter(name, direction, parents, shown, kwargs, old)
        try:
            output = func(*args, **kwargs)
        except BaseException as error:
            if call is not None:
                recorder.fail(call, error)
            raise
        try:
            if call is not None:
                recorder.leave(call, name, output)
            if inputs is not None:
                self._gradients.watch(name, list(parents), inputs, output)
        except Exception:
            recorder.fault(name, traceback.format_exc())
        return output

    def _enter(
        self, name: str, direction: str, parents: Sequence[str], args: Any, kwargs: Any, old: bool
    ) -> tuple[Optional[int], Any]:
        recorder = self._recorder
        selection = recorder.selection
        call: Optional[int] = None
        inputs: Any = None
        try:
            wanted = selection.everything or selection.enter(name, parents)
            if wanted and (selection.forward if direction == FORWARD else selection.backward):
                recorder.place(parents)
                call = recorder.enter(name, parents[-1] if parents else None, args, kwargs, 4)
            if direction == FORWARD and selection.backward and requires_grad():
                if old and AVAILABLE:
                    inputs = self._gradients.inputs(args, kwargs)
                    inputs = inputs if inputs.edges else None
                elif name.split(".")[1] in _BLIND:
                    notices.warn_once(
                        f"level L2: MindSpore runs the backward of {name.split('.')[1]} where its dispatch mode "
                        "does not see it: it is not recorded."
                    )
        except Exception:
            recorder.fault(name, traceback.format_exc())
        return call, inputs


class Kernels:
    """The mode of one step, put in and taken out."""

    def __init__(self, recorder: Recorder, gradients: Gradients) -> None:
        self._mode = _mode(recorder, gradients)
        self._on = False

    def install(self) -> None:
        if not self._on:
            self._mode.__enter__()
            self._on = True

    def remove(self) -> None:
        if self._on:
            self._on = False
            self._mode.__exit__(None, None, None)


class Callers(Apis):
    """Knows which API runs; records none."""

    def _record(self, api: Api, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        name = f"{api.title}.{recorder.numbers.take(api.title)}.{FORWARD}"
        recorder.push(name)
        try:
            return func(*args, **kwargs)
        finally:
            recorder.pop(name)


class Surroundings(Cells):
    """Cell hooks that only say where we are."""

    def _pre_hook(self, named: Named) -> Any:
        recorder, title = self._recorder, named.title

        def enter(cell: Any, args: Any, kwargs: Any) -> None:
            if recorder.closed:
                return
            if recorder.on_first_batch is not None:
                recorder.first_batch(args, kwargs)
            recorder.push(f"{title}.{FORWARD}.{recorder.numbers.take(title)}")

        return enter

    def _post_hook(self, title: str) -> Any:
        recorder, start = self._recorder, f"{title}.{FORWARD}."

        def leave(cell: Any, args: Any, kwargs: Any, output: Any) -> None:
            for name in reversed(recorder.parents):
                if name.startswith(start):
                    recorder.pop(name)
                    break

        return leave
