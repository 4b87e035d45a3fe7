"""APIs (level L1 and mix): what is recorded when a call of mint, ops, Tensor or a Primitive is made.

Where the calls are intercepted is in sites.py. A recorded API is a leaf: what it calls itself is not seen.
"""

from __future__ import annotations

import threading
import traceback
from typing import Any, Callable, Optional

from msprobe.collect.recorder import Recorder
from msprobe.frameworks.mindspore.api_table import Api
from msprobe.mindspore.apis.collectives import Collectives
from msprobe.mindspore.executor import backward_pass, requires_grad
from msprobe.mindspore.gradients.backward_graph import AVAILABLE, Inputs
from msprobe.mindspore.gradients.call_gradients import Gradients


class _Leaf(threading.local):
    depth = 0


class Apis:
    """Records the calls of one step."""

    def __init__(self, recorder: Recorder, gradients: Gradients) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._collectives = Collectives(recorder)
        self._leaf = _Leaf()

    def call(self, api: Api, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs one API, and records it unless it is part of one that is being recorded."""
        leaf = self._leaf
        if leaf.depth or self._recorder.closed:
            return func(*args, **kwargs)
        leaf.depth = 1
        try:
            return self._record(api, func, args, kwargs)
        finally:
            leaf.depth = 0

    def record_custom(self, api: Api, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return self.call(api, func, args, kwargs)

    def end(self) -> None:
        """The step ends."""
        self._collectives.remove()

    def _record(self, api: Api, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        selection = recorder.selection
        title = api.title
        name = f"{title}.{recorder.numbers.take(title)}.forward"
        parents = recorder.parents
        call: Optional[int] = None
        inputs: Optional[Inputs] = None
        try:
            wanted = selection.everything or selection.enter(name, parents)
            if wanted and selection.forward:
                call = recorder.enter(name, parents[-1] if parents else None, args, kwargs, 3)
            if selection.backward and AVAILABLE and requires_grad():
                inputs = self._gradients.inputs(args, kwargs)
                if not inputs.edges:
                    inputs = None
        except Exception:
            recorder.fault(name, traceback.format_exc())
        try:
            output = func(*args, **kwargs)
        except BaseException as error:
            if call is not None:
                recorder.fail(call, error, _members(api, recorder))
            if not selection.everything:
                selection.leave(name)
            raise
        try:
            if api.collective:
                self._collectives.leave(api.name, call, name, args, kwargs, output)
            elif call is not None:
                recorder.leave(call, name, output, _members(api, recorder))
            if not selection.everything:
                selection.leave(name)
            if inputs is not None:
                self._gradients.watch(name, list(parents), inputs, output)
                if not parents:
                    self._gradients.forget_graph()
        except Exception:
            recorder.fault(name, traceback.format_exc())
        return output


def _members(api: Api, recorder: Recorder) -> str:
    return ", ".join(filter(None, (_recomputed(), api.members if recorder.with_inputs else "")))


def _recomputed() -> str:
    """A forward call during a backward pass is a recomputation."""
    return '"is_recompute": true' if backward_pass() >= 0 else ""
