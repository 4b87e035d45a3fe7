"""Kernels (level L2, dynamic graph): operators through MindSpore's dispatch mode, forward and backward.

The mode does not see everything (tests/mindspore/test_blind_kernels.py shows each case):
- The framework runs the backward of operators of the older kind (Conv2D, LayerNorm, BatchNorm, MaxPool, BiasAdd, …)
  in C++. They have a node of the backward graph when we see them, and their gradients are read off it.
- It does the same with a few operators of the newer kind (Softmax, Sqrt, Max, Slice, …). Their node is there a little
  later: on what the next operator takes or the API returns.
- Some calls (cat, indexing) reach no dispatch at all: the inputs and outputs of the API are recorded instead.
msprobe logs the names of the operators that it still does not see.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

from msprobe.collect.calls.kernel_calls import enter_kernel, enter_place, fail_kernel, leave_kernel, leave_place
from msprobe.collect.calls.module_calls import ModulePlaces
from msprobe.collect.records.recorder import Recorder
from msprobe.dump.names import BACKWARD, FORWARD, backward_of
from msprobe.frameworks.mindspore.api_table import Api
from msprobe.mindspore.apis.api_calls import Apis
from msprobe.mindspore.cells.cell_calls import Cells
from msprobe.mindspore.executor import backward_pass, clear_after_error, requires_grad
from msprobe.mindspore.features import HAS_BACKWARD_GRAPH, MsDispatchMode
from msprobe.mindspore.gradients.backward_graph import InputEdges, node_of, tensors_in
from msprobe.mindspore.gradients.call_gradients import Gradients

HAS_DISPATCH = MsDispatchMode is not None
_NO_PARENTS: tuple[str, ...] = ()
_BLIND = frozenset(  # of the newer kind; MindSpore 2.10
    ("Softmax", "Sqrt", "Rsqrt", "Max", "Min", "ArgMaxWithValue", "ArgMinWithValue", "Slice")
)
_REGION = "Jit."


class Waiting(NamedTuple):
    """A call whose node of the backward graph is not there yet."""

    operator: str
    name: str
    parents: list[str]
    inputs: InputEdges


class Begun(NamedTuple):
    """An operator that runs now. `call` is None if it is not recorded, `inputs` if its gradients are not watched."""

    name: str
    parents: Sequence[str]
    call: Optional[int]
    inputs: Optional[InputEdges]


class Kernels:
    """Records the operators of one step while its mode is on."""

    def __init__(self, recorder: Recorder, gradients: Gradients) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._waiting: list[Waiting] = []
        self.seen = 0
        self._mode = self._make_mode()
        self._on = False

    def install(self) -> None:
        if not self._on:
            self._mode.__enter__()
            self._on = True

    def remove(self) -> None:
        if self._on:
            self._on = False
            self._mode.__exit__(None, None, None)

    def settle(self, values: Any) -> None:
        """Looks for the missing nodes among tensors that the framework has finished."""
        for tensor in tensors_in(values, []) if self._waiting else ():
            node = node_of(tensor)
            operator = node.name() if node is not None else ""
            found = next((one for one in self._waiting if one.operator == operator), None)
            if found is not None and node._sequence_nr() >= found.inputs.first:
                self._waiting.remove(found)
                self._watch(found.name, found.parents, found.inputs, tensor)

    def inputs(self, args: Any, kwargs: Any) -> Optional[InputEdges]:
        """The edges that lead to these inputs in the backward graph, if gradients are wanted."""
        if not (HAS_BACKWARD_GRAPH and self._recorder.selection.backward and requires_grad()):
            return None
        found = self._gradients.inputs(args, kwargs)
        return found if found.edges else None

    def record_call(self, api: str, args: Any, kwargs: Any, output: Any, inputs: Optional[InputEdges]) -> None:
        """Records an API that returned new tensors although no operator was seen inside it."""
        given = {id(tensor) for tensor in tensors_in((args, kwargs), [])}
        if all(id(tensor) in given for tensor in tensors_in(output, [])):
            return
        recorder, selection = self._recorder, self._recorder.selection
        title = f"Kernel.{api}"
        name = f"{title}.{recorder.numbers.take(f'{title}.{FORWARD}')}.{FORWARD}"
        parents = recorder.parents
        wanted = selection.everything or selection.enter(name, parents)
        call = None
        if wanted and selection.forward:
            recorder.place(parents)
            call = recorder.enter(name, parents[-1], args, kwargs, 5)
        leave_kernel(recorder, name, call, output)
        if inputs is not None:
            self._watch(name, parents, inputs, output)

    def unseen(self) -> list[str]:
        """The operators whose nodes did not come before the end of the step."""
        return sorted({one.operator for one in self._waiting})

    def _make_mode(self) -> Any:
        """Creates the class here, because not every version of MindSpore has its base."""
        kernels = self

        class Mode(MsDispatchMode):
            def __ms_dispatch__(self, func: Any, args: Any = (), kwargs: Any = None) -> Any:
                return kernels.call(func, args, kwargs or {})

        return Mode()

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        if recorder.closed:
            return func(*args, **kwargs)
        self.seen += 1
        old = len(args) == 3 and isinstance(args[1], str) and isinstance(args[2], (tuple, list))
        begun: Optional[Begun] = None
        try:
            begun = self._begin(func.name, args[2] if old else args, kwargs, old)
        except Exception:
            recorder.fault("a kernel", traceback.format_exc())
        try:
            output = func(*args, **kwargs)
        except BaseException as error:
            clear_after_error()
            if begun is not None:
                fail_kernel(recorder, begun.name, begun.call, error)
            raise
        if begun is not None:
            self._end(func.name, begun, output, old)
        return output

    def _begin(self, operator: str, args: Any, kwargs: Any, old: bool) -> Begun:
        """`old`: an operator of the older kind, called with (primitive, its name, the arguments)."""
        recorder = self._recorder
        parents: Sequence[str] = recorder.parents
        direction = FORWARD
        if backward_pass() >= 0 and not parents:  # a call inside a Cell or an API in a backward pass is a recomputation
            direction, parents = BACKWARD, _NO_PARENTS
        title = f"Kernel.{operator}"
        name = f"{title}.{recorder.numbers.take(f'{title}.{direction}')}.{direction}"
        call = enter_kernel(recorder, name, direction, parents, args, kwargs, 5)
        inputs = self._watched_inputs(name, operator, args, kwargs, old) if direction == FORWARD else None
        return Begun(name, parents, call, inputs)

    def _end(self, operator: str, begun: Begun, output: Any, old: bool) -> None:
        name, parents, call, inputs = begun
        leave_kernel(self._recorder, name, call, output)
        try:
            if inputs is not None and old:
                self._watch(name, parents, inputs, output)
            elif inputs is not None:
                self._waiting.append(Waiting(operator, name, list(parents), inputs))
        except Exception:
            self._recorder.fault(name, traceback.format_exc())

    def _watch(self, name: str, parents: Sequence[str], inputs: InputEdges, output: Any) -> None:
        self._recorder.place([backward_of(parent) for parent in parents])
        self._gradients.watch(name, list(parents), inputs, output)

    def _watched_inputs(self, name: str, operator: str, args: Any, kwargs: Any, old: bool) -> Optional[InputEdges]:
        """The edges that lead to the inputs of an operator whose backward the mode does not see."""
        try:
            self.settle(args)
            return self.inputs(args, kwargs) if old or operator in _BLIND else None
        except Exception:
            self._recorder.fault(name, traceback.format_exc())
        return None


class ApiStack(Apis):
    """Knows which API runs. Records each compiled region as one call, and calls that reach no dispatch."""

    kernels: Kernels

    def record(self, api: Api, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        recorder, kernels = self._recorder, self.kernels
        if api.title.startswith(_REGION):
            within = recorder.parents and recorder.parents[-1].startswith("Kernel.")  # an optimizer's record has it
            return func(*args, **kwargs) if within else super().record(api, func, args, kwargs)
        name = enter_place(recorder, api.title)
        before = kernels.seen
        inputs: Optional[InputEdges] = None
        try:
            inputs = kernels.inputs(args, kwargs)
        except Exception:
            recorder.fault(name, traceback.format_exc())
        try:
            output = func(*args, **kwargs)
            self._complete(api, before, args, kwargs, output, inputs)
            return output
        finally:
            leave_place(recorder, name)

    def _complete(
        self, api: Api, before: int, args: Any, kwargs: Any, output: Any, inputs: Optional[InputEdges]
    ) -> None:
        try:
            self.kernels.settle(output)
            if self.kernels.seen == before:
                self.kernels.record_call(api.name, args, kwargs, output, inputs)
        except Exception:
            self._recorder.fault(api.title, traceback.format_exc())


class ModuleStack(ModulePlaces, Cells):
    """Cell hooks that only say which Cell runs."""
