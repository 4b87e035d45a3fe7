"""overflow_check on PyTorch: inspects calls and gradients.

For a forward call only the outputs are inspected. Its inputs are inspected if an output is bad, or before the call if
the call may write them. Gradients are read at the same place as for statistics.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any, Optional

import torch

from msprobe.frameworks.pytorch.api_table import Api
from msprobe.pytorch.apis.api_calls import Apis
from msprobe.pytorch.gradients.backward_graph import InputEdges
from msprobe.pytorch.gradients.held_gradients import HeldGradients
from msprobe.pytorch.modules.module_calls import Modules
from msprobe.pytorch.tasks.overflow_inspector import PLAIN, SIMPLE, restored
from msprobe.pytorch.tasks.overflow_saturation import CASTS, NAMES, count_saturated, source_of
from msprobe.pytorch.tensors.tensor_text import EXCHANGE
from msprobe.stats.finiteness import FINITE, classify_scan
from msprobe.stats.scan import NOT_RUN, run
from msprobe.tasks.overflow_check.backward import BackwardJudge, JudgedGradients
from msprobe.tasks.overflow_check.open_calls import OpenCall
from msprobe.tasks.overflow_check.recorder import OverflowRecorder

# For a replay, what an in-place call overwrites is copied, up to this many bytes. An optimizer overwrites the
# complete model several times a step: without gradients only little is copied.
_KEPT, _KEPT_WITHOUT_GRADIENTS = 64 << 20, 64 << 10
_is_grad_enabled, _Tensor = torch.is_grad_enabled, torch.Tensor


class OverflowApis(Apis):
    """Inspects what every API returns."""

    _recorder: OverflowRecorder

    def __init__(self, recorder: OverflowRecorder, *parts: Any) -> None:
        super().__init__(recorder, *parts)
        limit = _KEPT_WITHOUT_GRADIENTS
        self._calls = recorder.calls
        self._watch = (EXCHANGE, PLAIN, SIMPLE, self._calls.known, limit, self._remember, self._end)
        self._texts.dependents.append(self._calls.known)

    def record(self, api: Api, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs one API and inspects its result.

        An optimizer makes hundreds of calls per step that write their first argument, or nothing. For a call without an
        overflow, this does as little as possible.
        """
        number = 0
        try:
            number = self._recorder.numbers.take(api.title)
        except Exception:
            self._recorder.fault(api.title, traceback.format_exc())
        if api.simple and EXCHANGE is not None and not _is_grad_enabled():
            output = run(self._watch, func, args, kwargs, api.inplace, api, number)
            if output is not NOT_RUN:
                if api.title in CASTS:
                    self._check_cast(api, number, args, output)
                return output
        output = self._run(api, number, func, args, kwargs)
        if api.title in CASTS:
            self._check_cast(api, number, args, output)
        return output

    def _check_cast(self, api: Api, number: int, args: Any, output: Any) -> None:
        """Counts the values that a cast has limited: no later call shows them as infinity."""
        try:
            source = source_of(api.title, args, output)
            if source is None:
                return
            values, infinite, peak = count_saturated(source, output)
            if values:
                found, parents = self._recorder.run, self._recorder.parents
                name = _name(api, number)
                place = f"{name} in {parents[-1]}" if parents else name
                found.largest = NAMES
                found.saturations.add(place, str(output.dtype), values, infinite, peak)
        except Exception:
            self._recorder.fault(_name(api, number), traceback.format_exc())

    def _end(
        self,
        api: Api,
        number: int,
        args: Any,
        kwargs: Any,
        output: Any,
        seen: Optional[tuple[int, int, int, int]],
        versions: list[tuple[Any, int]],
        before: tuple[int, int, int, int],
        data: Any,
    ) -> None:
        """A simple call returned something bad or near its limits, or not a plain tensor.

        `seen` is the scan of its output. `before` is the scan of what it wrote, taken before the call; `data` has those
        bytes.
        """
        recorder, calls = self._recorder, self._calls
        ranges, title = recorder.run.ranges, api.first_call
        try:
            if seen is not None:
                found: Optional[int] = classify_scan(*seen, output.dtype, ranges, title)
            else:
                found = calls.result(output, title)
            if found == FINITE:
                if api.inplace:
                    calls.remember(args[0], args[0]._version)
                return
            call = calls.open((), {}, False, (), 0)
            call.args, call.kwargs, call.versions = args, kwargs, versions
            if api.inplace:
                target = args[0]
                call.given = classify_scan(*before, target.dtype, None, "") if before else FINITE
                call.versions = [(tensor, version) for tensor, version in versions if tensor is not target]
                call.changing = call.written = (target,)
                call.lost = data is False or len(data) != target.numel() * target.element_size()
                call.copies = {} if call.lost else {id(target): restored(data, target)}
            name, parents = _name(api, number), recorder.parents
            calls.locate(call, name, parents[-1] if parents else None, 3)
            recorder.end_call(call, name, output, found, self._gradients.recompute_member())
        except Exception:
            recorder.fault(_name(api, number), traceback.format_exc())

    def _remember(self, tensor: Any, version: int) -> None:
        try:
            self._calls.remember(tensor, version)
        except Exception:
            self._recorder.fault("a written tensor", traceback.format_exc())

    def drop_tensors(self) -> None:
        super().drop_tensors()
        assert isinstance(self._gradients, OverflowGradients)
        self._gradients.judge.close()

    def pause(self) -> None:
        """Later calls are not seen and may write `.data`."""
        super().pause()
        self._calls.known.clear()

    def _run(self, api: Api, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        recorder, calls = self._recorder, self._calls
        differentiated = _is_grad_enabled()
        call: Optional[OpenCall] = None
        inputs: Optional[InputEdges] = None
        try:
            writing = writes(api, args, kwargs)
            call = calls.open(
                args,
                kwargs,
                writing,
                args[:1] if writing and _writes_first(api, args, kwargs) else (),
                _KEPT if differentiated else _KEPT_WITHOUT_GRADIENTS,
            )
            if api.random:
                call.random = torch.get_rng_state()
            if differentiated:
                inputs = InputEdges(args, kwargs)
                if not inputs.edges and not inputs.leaves:
                    inputs = None
        except Exception:
            recorder.fault(_name(api, number), traceback.format_exc())
        output = func(*args, **kwargs)
        if call is None:
            return output
        try:
            if api.untracked:
                self._texts.forget()
            found = None
            if api.collective:
                pass  # it may still be running
            elif isinstance(output, _Tensor):
                found = recorder.inspector.look(output, recorder.run.ranges, api.first_call)
            else:
                found = calls.result(output, api.first_call)
            if inputs is None and found == FINITE:
                calls.passed(call)
                return output
            name, parents = _name(api, number), recorder.parents
            calls.locate(call, name, parents[-1] if parents else None, 3)
            if inputs is not None:
                self._gradients.watch(name, list(parents), inputs, output)
                assert isinstance(self._gradients, OverflowGradients)
                self._gradients.judge.remember(name, call.stack, args, kwargs)
            if api.collective:
                running = calls.add(call)
                self._collectives.leave(api.name, running, name, args, kwargs, output)
                calls.release(running)
            elif found == FINITE:
                calls.passed(call)
            else:
                recorder.end_call(call, name, output, found, self._gradients.recompute_member())
        except Exception:
            recorder.fault(_name(api, number), traceback.format_exc())
        return output


def _name(api: Api, number: int) -> str:
    return f"{api.title}.{number}.forward"


def writes(api: Api, args: Any, kwargs: Any) -> bool:
    if api.inplace or api.untracked or api.writes_statistics or "out" in kwargs:
        return True
    if api.inplace_at < 0:
        return False
    return bool(args[api.inplace_at] if len(args) > api.inplace_at else kwargs.get("inplace", False))


def _writes_first(api: Api, args: Any, kwargs: Any) -> bool:
    plain = api.inplace or (api.inplace_at >= 0 and not api.untracked)
    return plain and "out" not in kwargs and bool(args) and isinstance(args[0], torch.Tensor)


class OverflowModules(Modules):
    """Inspects what every module returns; its parameters and buffers are part of its input."""

    def _with_parameters(self, name: str, module: Any, extra: str) -> str:
        recorder = self._recorder
        assert isinstance(recorder, OverflowRecorder)
        named = {**module._parameters, **module._buffers}
        recorder.set_parameters({key: tensor for key, tensor in named.items() if tensor is not None})
        return extra


class OverflowGradients(JudgedGradients, HeldGradients):
    """Inspects the gradients of one call when all have come."""

    _recorder: OverflowRecorder

    def __init__(self, recorder: OverflowRecorder) -> None:
        super().__init__(recorder)
        self.judge = BackwardJudge(recorder)

    def watch_parameter(self, module: str, name: str, parameter: Any, above: Sequence[str] = ()) -> None:
        record = f"{module}.parameters_grad"

        def hook(gradient: Any) -> None:
            recorder = self._recorder
            if recorder.closed:
                return
            try:
                with torch._C.DisableTorchFunction():
                    self.judge.parameter(record, name, gradient)
            except Exception:
                recorder.fault(record, traceback.format_exc())

        self._watched.append((parameter, hook, parameter.register_hook(hook)))

    def close(self) -> None:
        super().close()
        self.judge.close()
