"""Records the output of collectives of torch.distributed.

A blocking collective has written its tensors when it returns. An asynchronous one has written them when `wait()` has
returned, so its output is recorded there.
"""

from __future__ import annotations

import traceback
from typing import Any, Optional
from weakref import ref

import torch

from msprobe.collect.calls.collectives import UnfinishedCollective, UnfinishedCollectives, as_list
from msprobe.collect.records.recorder import Recorder
from msprobe.pytorch.gradients.backward_graph import tensors_in
from msprobe.pytorch.tensors import nonplain_tensors
from msprobe.pytorch.tensors.tensor_text import TensorTexts

_FUNCTIONAL = ("_c10d_functional.", "_c10d_functional_autograd.")
_SENDS = frozenset({"send", "isend", "barrier", "monitored_barrier", "send_object_list"})
_RESULT_IS_SECOND = {"gather": "gather_list"}
_FIRST_NAMES = (
    "tensor",
    "tensor_list",
    "output_tensor",
    "output",
    "output_tensor_list",
    "output_tensor_lists",
    "tensors",
    "p2p_op_list",
)


class Collectives(UnfinishedCollectives):
    """Finishes the records of collectives of one step."""

    def __init__(self, recorder: Recorder, texts: TensorTexts) -> None:
        super().__init__(recorder)
        self._texts = texts
        self._wait: Any = None
        self._paused = False

    def leave(self, api: str, call: Optional[int], name: str, args: Any, kwargs: Any, returned: Any) -> None:
        """The call has returned; `returned` is a work handle, a list of them, or nothing."""
        if call is None:
            return
        if api.startswith(_FUNCTIONAL):
            self._recorder.leave(call, name, _waited(api, returned))
            return
        produced = _produced(api, args, kwargs)
        works = [work for work in as_list(returned) if hasattr(work, "wait")]
        if not works:
            self._recorder.leave(call, name, produced if produced is not None else returned)
            return
        self._patch_wait()
        waiting = _Waiting(call, name, produced, len(works))
        for work in works:
            key = id(work)
            self._waiting[key] = waiting
            waiting.handles.append(ref(work, lambda _, key=key: self._drop(key)))  # type: ignore[misc]

    def _drop(self, key: int) -> None:
        """The script has dropped a handle without wait(): another object may get its id."""
        try:
            waiting = self._waiting.pop(key, None)
            if waiting is not None:
                self._finish(waiting, waited=False)
        except Exception:
            self._recorder.fault("a dropped Work", traceback.format_exc())

    def pause(self) -> None:
        """stop(): restores `Work.wait`, at once or when the script has waited for the last open collective."""
        self._paused = True
        if not self._waiting:
            self._put_back()

    def _put_back(self) -> None:
        if self._wait is not None:
            torch.distributed.Work.wait = self._wait
            self._wait = None

    def remove(self) -> None:
        """Restores `Work.wait` and finishes all records."""
        self._put_back()
        self._finish_all()

    def _patch_wait(self) -> None:
        self._paused = False
        if self._wait is not None:
            return
        original = self._wait = torch.distributed.Work.wait

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            try:
                self._note_wait(work)
                if self._paused and not self._waiting:
                    self._put_back()
            except Exception:
                self._recorder.fault("Work.wait", traceback.format_exc())
            return result

        torch.distributed.Work.wait = wait

    def _finish(self, waiting: UnfinishedCollective, waited: bool) -> None:
        with torch._C.DisableTorchFunction():
            self._texts.forget()
            super()._finish(waiting, waited)


class _Waiting(UnfinishedCollective):
    """An unfinished collective. Its record has a list of tensors as a list, and a single tensor as one item."""

    def __init__(self, call: int, name: str, produced: Any, left: int) -> None:
        super().__init__(call, name, tensors_in(produced, []), left)
        self._is_list = isinstance(produced, (list, tuple))

    def produced(self) -> Any:
        tensors = self.tensors()
        return tensors if self._is_list else (tensors[0] if tensors else None)


def _waited(api: str, returned: Any) -> Any:
    """Waits for the result of a functional collective. The script waits for it at its first use; a second wait does
    nothing."""
    if not api.endswith((".wait_tensor", "._wrap_tensor_autograd")):
        with torch.no_grad(), torch._C.DisableTorchFunction(), nonplain_tensors.without_modes():
            for tensor in tensors_in(returned, []):
                torch.ops._c10d_functional.wait_tensor(getattr(tensor, "elem", tensor))
    return returned


def _produced(api: str, args: Any, kwargs: Any) -> Any:
    """The argument that a collective writes."""
    if api in _SENDS:
        return None
    if api in _RESULT_IS_SECOND:
        return args[1] if len(args) > 1 else kwargs.get(_RESULT_IS_SECOND[api])
    if api == "batch_isend_irecv":
        operations = args[0] if args else kwargs.get("p2p_op_list", [])
        return [op.tensor for op in operations if getattr(op.op, "__name__", "") == "irecv"]
    if args:
        return args[0]
    return next((kwargs[name] for name in _FIRST_NAMES if name in kwargs), None)
