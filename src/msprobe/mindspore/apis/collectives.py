"""Records the output of collectives of mint.distributed or comm_func.

A collective with a handle has written its tensors only when `wait()` has returned, so its output is recorded there.
"""

from __future__ import annotations

import traceback
from typing import Any, Optional

from mindspore._c_expression import CommHandle
from mindspore.communication import comm_func

from msprobe.collect.calls.collectives import UnfinishedCollective, UnfinishedCollectives, as_list
from msprobe.collect.records.recorder import Recorder
from msprobe.mindspore.gradients.backward_graph import tensors_in

_SENDS = frozenset({"send", "isend", "barrier"})
_HANDLES = tuple({CommHandle, comm_func.CommHandle})


class Collectives(UnfinishedCollectives):
    """Finishes the records of collectives of one step."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._waits: list[tuple[Any, Any]] = []

    def leave(self, api: str, call: Optional[int], name: str, args: Any, kwargs: Any, returned: Any) -> None:
        """The call has returned: nothing, a handle, a list of handles, or (tensor, handle)."""
        if call is None:
            return
        handles = [each for each in as_list(returned) if isinstance(each, _HANDLES)]
        values = [each for each in as_list(returned) if each is not None and not isinstance(each, _HANDLES)]
        if not values:
            values = _written(api, args, kwargs)
        if not handles:
            self._recorder.leave(call, name, tuple(values))
            return
        self._patch_wait()
        waiting = UnfinishedCollective(call, name, tensors_in(values, []), len(handles))
        waiting.handles = handles  # held, so that no other object gets their ids
        for handle in handles:
            self._waiting[id(handle)] = waiting

    def remove(self) -> None:
        """Restores `wait` and finishes all records."""
        for kind, original in self._waits:
            kind.wait = original
        self._waits.clear()
        self._finish_all()

    def _patch_wait(self) -> None:
        if self._waits:
            return
        for kind in _HANDLES:
            original = kind.wait
            self._waits.append((kind, original))
            kind.wait = self._follow(original)

    def _follow(self, original: Any) -> Any:
        def wait(handle: Any) -> Any:
            result = original(handle)
            try:
                self._note_wait(handle)
            except Exception:
                self._recorder.fault("CommHandle.wait", traceback.format_exc())
            return result

        return wait


def _written(api: str, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that a collective of mint.distributed writes."""
    if api in _SENDS:
        return []
    if api == "batch_isend_irecv":
        operations = args[0] if args else next(iter(kwargs.values()), [])
        return [each.tensor for each in operations if getattr(each, "op", "") == "irecv"]
    given = list(args) + list(kwargs.values())
    place = 1 if api == "gather" else 0
    return as_list(given[place]) if len(given) > place else []
