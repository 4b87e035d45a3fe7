"""What a collective of mint.distributed or comm_func produced.

One that has a handle has written its tensors only when `wait()` has returned, so its output is recorded
there. Its tensors are held weakly meanwhile: if the user drops them, there is nothing to record.
"""

from __future__ import annotations

import traceback
from typing import Any, Optional
from weakref import ref

from mindspore._c_expression import CommHandle
from mindspore.communication import comm_func

from msprobe.collect.recorder import Recorder
from msprobe.mindspore.gradients.backward_graph import tensors_in

_SENDS = frozenset({"send", "isend", "barrier"})
_HANDLES = tuple({CommHandle, comm_func.CommHandle})


class Collectives:
    """Finishes the records of collectives of one step."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._waiting: dict[int, _Waiting] = {}
        self._waits: list[tuple[Any, Any]] = []

    def leave(self, api: str, call: Optional[int], name: str, args: Any, kwargs: Any, returned: Any) -> None:
        """The call has returned: nothing, a handle, a list of handles, or (tensor, handle)."""
        if call is None:
            return
        handles = [each for each in _listed(returned) if isinstance(each, _HANDLES)]
        values = [each for each in _listed(returned) if each is not None and not isinstance(each, _HANDLES)]
        if not values:
            values = _written(api, args, kwargs)
        if not handles:
            self._recorder.leave(call, name, tuple(values))
            return
        self._patch_wait()
        waiting = _Waiting(call, name, values, handles)
        for handle in handles:
            self._waiting[id(handle)] = waiting

    def remove(self) -> None:
        """Puts `wait` back; what was never waited for ends without an output."""
        for kind, original in self._waits:
            kind.wait = original
        self._waits.clear()
        for waiting in {id(each): each for each in self._waiting.values()}.values():
            if not self._recorder.closed:
                self._recorder.unwaited(waiting.call)
        self._waiting.clear()

    def _patch_wait(self) -> None:
        if self._waits:
            return
        for kind in _HANDLES:
            original = kind.wait
            self._waits.append((kind, original))
            kind.wait = self._recording(original)

    def _recording(self, original: Any) -> Any:
        def wait(handle: Any) -> Any:
            result = original(handle)
            try:
                waiting = self._waiting.pop(id(handle), None)
                if waiting is not None and not self._recorder.closed:
                    waiting.left -= 1
                    if not waiting.left:
                        self._recorder.leave(waiting.call, waiting.name, waiting.produced())
            except Exception:
                self._recorder.fault("CommHandle.wait", traceback.format_exc())
            return result

        return wait


class _Waiting:
    """A record whose output is not there yet. It keeps the handles, so that their identity stays theirs."""

    def __init__(self, call: int, name: str, produced: Any, handles: list[Any]) -> None:
        self.call = call
        self.name = name
        self.left = len(handles)
        self._handles = handles
        self._tensors = [ref(tensor) for tensor in tensors_in(produced, [])]

    def produced(self) -> tuple[Any, ...]:
        return tuple(tensor() for tensor in self._tensors)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _written(api: str, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that a collective of mint.distributed writes."""
    if api in _SENDS:
        return []
    if api == "batch_isend_irecv":
        operations = args[0] if args else next(iter(kwargs.values()), [])
        return [each.tensor for each in operations if getattr(each, "op", "") == "irecv"]
    given = list(args) + list(kwargs.values())
    place = 1 if api == "gather" else 0
    return _listed(given[place]) if len(given) > place else []
