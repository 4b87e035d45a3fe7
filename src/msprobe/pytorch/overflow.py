"""overflow_check on PyTorch: the places where a call and a gradient are looked at.

Forward calls are looked at by their outputs alone; what a call received is looked at only when its output
is bad, or beforehand where the call may write it. Gradients are read where the statistics read them.
"""

from __future__ import annotations

import traceback
from functools import cache
from typing import Any, Optional

import torch

from msprobe.tasks.backward import BackwardJudge
from msprobe.tasks.looks import FINITE
from msprobe.tasks.open_calls import OpenCall
from msprobe.tasks.overflow import OverflowRecorder

from .api_table import Api
from .apis import Apis, _recomputed
from .backward_graph import Inputs
from .gradients import _Backward
from .held_gradients import HeldGradients
from .modules import Modules
from .overflow_eyes import SIMPLE

# What an in-place call overwrites is copied for a replay up to so many bytes. An optimizer overwrites the whole
# model several times a step: without gradients only little is kept.
_KEPT, _KEPT_WITHOUT_GRADIENTS = 64 << 20, 64 << 10
# Looked at beforehand although their names do not say that they write: running statistics.
_WRITING = frozenset({"batch_norm", "instance_norm", "native_batch_norm", "_native_batch_norm_legit"})
_is_grad_enabled, _Tensor = torch.is_grad_enabled, torch.Tensor
_Before = tuple[int, Any, list[tuple[Any, int]]]
"""How bad the written argument was, a copy of it if it is small, and the tensors with their versions."""


class OverflowApis(Apis):
    """Looks at what every API returns."""

    _recorder: OverflowRecorder

    def record(self, api: Api, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs one API and looks at what it returns."""
        number = self._recorder.numbers.take(api.title)
        if not _is_grad_enabled() and _is_simple(api):
            before = self._before(api, args, kwargs)
            if before is not None:
                return self._run_simple(api, number, func, args, kwargs, before)
        return self._run(api, number, func, args, kwargs)

    def _distrust(self, func: Any, args: Any) -> None:
        super()._distrust(func, args)
        self._recorder.known.clear()

    def pause(self) -> None:
        """What runs from here on is not seen: `.data` may be written."""
        super().pause()
        self._recorder.known.clear()

    def _before(self, api: Api, args: Any, kwargs: Any) -> Optional[_Before]:
        """What is to be known of the arguments of a simple call before it; None where they are not as simple."""
        try:
            for value in kwargs.values():
                if type(value) not in SIMPLE:
                    return None
            versions = []
            for value in args:
                if isinstance(value, _Tensor):
                    versions.append((value, value._version))
                elif type(value) not in SIMPLE:
                    return None
            if not api.inplace:
                return FINITE, None, versions
            target, version = versions[0]
            if target is not args[0]:
                return None
            recorder = self._recorder
            known = recorder.known.get(id(target))
            fresh = known is not None and known[1] == version and known[0]() is target
            given = FINITE if fresh else recorder.eyes.look(target)
            small = target.nbytes <= _KEPT_WITHOUT_GRADIENTS
            return given, recorder.eyes.copy(target) if small else None, versions
        except Exception:  # an inference tensor has no version; the longer way knows what to do
            return None

    def _run_simple(self, api: Api, number: int, func: Any, args: Any, kwargs: Any, before: _Before) -> Any:
        """An optimizer makes hundreds of these a step: of one that passes, nothing is made that can wait."""
        output = func(*args, **kwargs)
        recorder = self._recorder
        try:
            found: Optional[int] = None
            if isinstance(output, _Tensor):
                found = recorder.eyes.look(output, recorder.run.ranges, api.first_call)
            if found == FINITE:
                if api.inplace:
                    recorder.remember(args[0], args[0]._version)
                return output
            given, copy, versions = before
            call = recorder.open((), {}, False, (), 0)
            call.args, call.kwargs, call.given = args, kwargs, given
            call.versions = [pair for pair in versions if not api.inplace or pair[0] is not args[0]]
            if api.inplace:
                call.changing = call.written = args[:1]
                call.lost = copy is None
                call.copies = {} if copy is None else {id(args[0]): copy}
            name, parents = _name(api, number), recorder.parents
            recorder.locate(call, name, parents[-1] if parents else None, 3)
            if found is None:
                found = recorder.result(output, api.first_call)
            recorder.close(call, name, output, found, _recomputed(self._gradients))
        except Exception:
            recorder.fault(_name(api, number), traceback.format_exc())
        return output

    def _run(self, api: Api, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        differentiated = _is_grad_enabled()
        call: Optional[OpenCall] = None
        inputs: Optional[Inputs] = None
        try:
            writing = writes(api, args, kwargs)
            call = recorder.open(
                args,
                kwargs,
                writing,
                args[:1] if writing and _writes_first(api, args, kwargs) else (),
                _KEPT if differentiated else _KEPT_WITHOUT_GRADIENTS,
            )
            if api.random:
                call.random = torch.get_rng_state()
            if differentiated:
                inputs = Inputs(args, kwargs)
                if not inputs.edges and not inputs.leaves:
                    inputs = None
        except Exception:
            recorder.fault(_name(api, number), traceback.format_exc())
        output = func(*args, **kwargs)
        if call is None:
            return output
        try:
            found = None
            if isinstance(output, _Tensor):
                found = recorder.eyes.look(output, recorder.run.ranges, api.first_call)
            elif not api.collective:
                found = recorder.result(output, api.first_call)
            if inputs is None and found == FINITE:
                recorder.passed(call)
                return output
            name, parents = _name(api, number), recorder.parents
            recorder.locate(call, name, parents[-1] if parents else None, 3)
            if inputs is not None:
                self._gradients.watch(name, list(parents), inputs, output)
                assert isinstance(self._gradients, OverflowGradients)
                self._gradients.judge.remember(name, call.stack, args, kwargs)
            if api.collective:
                under_way = recorder.under_way(call)
                self._collectives.leave(api.name, under_way, name, args, kwargs, output)
                recorder.loosen(under_way)
            else:
                recorder.close(call, name, output, found, _recomputed(self._gradients))
        except Exception:
            recorder.fault(_name(api, number), traceback.format_exc())
        return output


def _name(api: Api, number: int) -> str:
    return f"{api.title}.{number}.forward"


@cache
def _is_simple(api: Api) -> bool:
    """Whether its name alone says what it writes: its first argument, or nothing."""
    return not (api.random or api.collective or api.untracked or api.inplace_at >= 0 or api.name in _WRITING)


def writes(api: Api, args: Any, kwargs: Any) -> bool:
    if api.inplace or api.untracked or api.name in _WRITING or "out" in kwargs:
        return True
    if api.inplace_at < 0:
        return False
    return bool(args[api.inplace_at] if len(args) > api.inplace_at else kwargs.get("inplace", False))


def _writes_first(api: Api, args: Any, kwargs: Any) -> bool:
    plain = api.inplace or (api.inplace_at >= 0 and not api.untracked)
    return plain and "out" not in kwargs and bool(args) and isinstance(args[0], torch.Tensor)


class OverflowModules(Modules):
    """Looks at what every module returns; its parameters and buffers are part of what it was given."""

    def _with_parameters(self, name: str, module: Any, extra: str) -> str:
        recorder = self._recorder
        assert isinstance(recorder, OverflowRecorder)
        named = {**module._parameters, **module._buffers}
        recorder.beside({key: tensor for key, tensor in named.items() if tensor is not None})
        return extra


class OverflowGradients(HeldGradients):
    """Looks at the gradients of one call when all have come."""

    _recorder: OverflowRecorder

    def __init__(self, recorder: OverflowRecorder) -> None:
        super().__init__(recorder)
        self.judge = BackwardJudge(recorder)

    def _take_incoming(self, record: _Backward, places: Any, grads: Any) -> None:
        super()._take_incoming(record, places, grads)
        if not record.remaining:
            self.judge.pass_by([grads[number] for _, number in places])

    def _judge(self, record: _Backward, incoming: list[Any], outgoing: list[Any]) -> None:
        self.judge.judge(record.name, record.parent, incoming, outgoing, record.shared)

    def watch_parameter(self, module: str, name: str, parameter: Any) -> None:
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
