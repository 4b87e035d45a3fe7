"""overflow_check on MindSpore's dynamic graph: inspects calls and gradients.

For a forward call only the outputs are inspected. Its inputs are inspected if an output is bad, or before the call if
the call may write them. An optimizer is one compiled region that only returns whether it ran: its parameters and
moments are inspected before and after it.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Optional

from mindspore import Parameter, nn, ops
from mindspore.experimental.optim import Optimizer as FunctionalOptimizer

from msprobe.frameworks.mindspore.api_table import Api
from msprobe.mindspore.apis.api_calls import Apis
from msprobe.mindspore.cells.cell_calls import Cells
from msprobe.mindspore.executor import requires_grad
from msprobe.mindspore.features import HAS_BACKWARD_GRAPH
from msprobe.mindspore.gradients.backward_graph import InputEdges, tensors_in
from msprobe.mindspore.gradients.held_gradients import HeldGradients
from msprobe.mindspore.gradients.parameter_gradients import ParameterGradients
from msprobe.mindspore.tensors.tensor_text import TensorTexts
from msprobe.tasks.overflow_check.backward import BackwardJudge, JudgedGradients
from msprobe.tasks.overflow_check.recorder import OverflowRecorder

# For a replay, what an in-place call overwrites is copied, up to this many bytes; fewer without gradients.
_KEPT, _KEPT_WITHOUT_GRADIENTS = 64 << 20, 64 << 10
_IN_PLACE = frozenset(("__iadd__", "__ifloordiv__", "__imod__", "__imul__", "__isub__", "__itruediv__", "__setitem__"))
_ASSIGNING = frozenset(("assign", "assign_add", "assign_sub"))
# APIs that write their first argument if it is a Parameter.
_ON_PARAMETERS = ("scatter_", "inplace_", "index_add", "batch_norm")
_OPTIMIZERS = (nn.Optimizer, FunctionalOptimizer)


class OverflowApis(Apis):
    """Inspects what every API returns."""

    _recorder: OverflowRecorder
    _gradients: OverflowGradients

    def record(self, api: Api, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        name = api.title
        try:
            name = f"{api.title}.{recorder.numbers.take(api.title)}.forward"
        except Exception:
            recorder.fault(name, traceback.format_exc())
        call, stack, inputs = self._open(name, api, func, args, kwargs)
        try:
            output = func(*args, **kwargs)
        except BaseException as error:
            self._fail(name, call, error)
            raise
        if call is None:
            return output
        try:
            if inputs is not None:
                self._gradients.watch(name, list(recorder.parents), inputs, output)
                self._gradients.judge.remember(name, stack, args, kwargs, api.members)
            if api.collective:
                self._collectives.leave(api.name, call, name, args, kwargs, output)
                recorder.calls.release(call)
            else:
                if isinstance(api.owner, nn.Cell) and not isinstance(api.owner, _OPTIMIZERS):
                    recorder.set_parameters(_owned(api.owner))
                recorder.leave(
                    call, name, output, ", ".join(filter(None, (self._gradients.recompute_member(), api.members)))
                )
        except Exception:
            recorder.fault(name, traceback.format_exc())
        return output

    def _fail(self, name: str, call: Optional[int], error: BaseException) -> None:
        try:
            self._recorder.fail(call, error)
        except Exception:
            self._recorder.fault(name, traceback.format_exc())

    def _open(
        self, name: str, api: Api, func: Any, args: Any, kwargs: Any
    ) -> tuple[Optional[int], Optional[int], Optional[InputEdges]]:
        """Begins a call. Returns its number, the number of its stack, and its inputs where gradients will come."""
        calls, parents = self._recorder.calls, self._recorder.parents
        try:
            differentiated = requires_grad()
            written = _written(api, func, args, kwargs)
            writes = api.collective or bool(written)
            opened = calls.open(args, kwargs, writes, written, _KEPT if differentiated else _KEPT_WITHOUT_GRADIENTS)
            calls.locate(opened, name, parents[-1] if parents else None, 4)
            if isinstance(api.owner, _OPTIMIZERS):
                calls.add_changing(opened, _owned(api.owner))
            inputs = self._gradients.inputs(args, kwargs) if differentiated and HAS_BACKWARD_GRAPH else None
            return calls.add(opened), opened.stack, inputs if inputs is not None and inputs.edges else None
        except Exception:
            self._recorder.fault(name, traceback.format_exc())
            return None, None, None


def _owned(cell: Any) -> Mapping[str, Any]:
    return {parameter.name: parameter for parameter in cell.get_parameters()}


def _written(api: Api, func: Any, args: Any, kwargs: Any) -> Sequence[Any]:
    """The arguments that a call writes, as far as its name or kind shows."""
    if api.title.startswith("Jit."):
        return _parameters(args, kwargs)
    primitive = _primitive(func)
    if primitive is not None:
        return _parameters(args, kwargs) if primitive.attrs.get("side_effect_mem") else ()
    if _writes_first(api.name) or (kwargs and kwargs.get("inplace") is True):
        return tensors_in(args[:1], [])
    return _parameters(args, kwargs) if api.name.startswith(_ON_PARAMETERS) else ()


@functools.cache
def _writes_first(api: str) -> bool:
    name = api.rpartition(".")[2]
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name in _IN_PLACE or name in _ASSIGNING


def _parameters(args: Any, kwargs: Any) -> list[Any]:
    return [tensor for tensor in tensors_in((args, kwargs), []) if isinstance(tensor, Parameter)]


def _primitive(func: Any) -> Any:
    """The Primitive that a call runs: api_patches.py binds it first."""
    bound = func.args[0] if isinstance(func, functools.partial) and func.args else None
    return bound if isinstance(bound, ops.Primitive) else None


class OverflowCells(Cells):
    """Inspects what every Cell returns; its parameters are part of its input."""

    def _with_parameters(self, name: str, cell: Any, extra: str) -> str:
        recorder = self._recorder
        assert isinstance(recorder, OverflowRecorder)
        recorder.set_parameters({key: parameter for key, parameter in cell._params.items() if parameter is not None})
        return extra


class OverflowGradients(JudgedGradients, HeldGradients):
    """Inspects the gradients of one call when all have come."""

    _recorder: OverflowRecorder

    def __init__(self, recorder: OverflowRecorder, texts: TensorTexts) -> None:
        super().__init__(recorder, texts)
        self.judge = BackwardJudge(recorder)

    def close(self) -> None:
        super().close()
        self.judge.close()


class OverflowParameterGradients(ParameterGradients):
    """Inspects the gradients of parameters where MindSpore returns them."""

    _recorder: OverflowRecorder

    def __init__(self, recorder: OverflowRecorder) -> None:
        super().__init__(recorder)
        self._judge = BackwardJudge(recorder)

    def _keep(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        for parameter, gradient in pairs:
            place = self._places.get(id(parameter))
            if place is not None and gradient is not None:
                self._judge.parameter(*place, gradient)
