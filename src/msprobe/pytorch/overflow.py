"""overflow_check on PyTorch: the places where a call and a gradient are looked at.

Forward calls are looked at by their outputs alone; what a call received is looked at only when its output
is bad, or beforehand where the call may write it. Gradients are read where the statistics read them.
"""

from __future__ import annotations

import traceback
from typing import Any, Optional

import torch

from msprobe.tasks.backward import BackwardJudge
from msprobe.tasks.overflow import OverflowRecorder

from .api_table import Api
from .apis import Apis, _recomputed
from .backward_graph import Inputs
from .gradients import _Backward
from .held_gradients import HeldGradients
from .modules import Modules

# What an in-place call overwrites is copied for a replay up to so many bytes. An optimizer overwrites the whole
# model several times a step: without gradients only little is kept.
_KEPT, _KEPT_WITHOUT_GRADIENTS = 64 << 20, 64 << 10
# Looked at beforehand although their names do not say that they write: running statistics.
_WRITING = frozenset({"batch_norm", "instance_norm", "native_batch_norm", "_native_batch_norm_legit"})


class OverflowApis(Apis):
    """Looks at what every API returns."""

    _recorder: OverflowRecorder

    def record(self, api: Api, func: Any, args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        name = f"{api.prefix}.{api.name}.{recorder.numbers.take(f'{api.prefix}.{api.name}')}.forward"
        parents = recorder.parents
        call: Optional[int] = None
        inputs: Optional[Inputs] = None
        try:
            writing = writes(api, args, kwargs)
            call = recorder.begin(
                name,
                parents[-1] if parents else None,
                args,
                kwargs,
                2,
                writes=writing,
                written=args[:1] if writing and _writes_first(api, args, kwargs) else (),
                keeps=_KEPT if torch.is_grad_enabled() else _KEPT_WITHOUT_GRADIENTS,
                random=torch.get_rng_state() if api.random else None,
            )
            if torch.is_grad_enabled():
                inputs = Inputs(args, kwargs)
                if not inputs.edges and not inputs.leaves:
                    inputs = None
        except Exception:
            recorder.fault(name, traceback.format_exc())
        try:
            output = func(*args, **kwargs)
        except BaseException as error:
            if call is not None:
                recorder.fail(call, error)
            raise
        try:
            if inputs is not None and call is not None:
                self._gradients.watch(name, list(parents), inputs, output)
                assert isinstance(self._gradients, OverflowGradients)
                self._gradients.judge.remember(name, recorder.stack_of(call), args, kwargs)
            if call is not None:
                if api.collective:
                    self._collectives.leave(api.name, call, name, args, kwargs, output)
                    recorder.loosen(call)
                else:
                    recorder.leave(call, name, output, _recomputed(self._gradients))
        except Exception:
            recorder.fault(name, traceback.format_exc())
        return output


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
