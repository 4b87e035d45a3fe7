"""APIs (level L1 and mix): calls of mint, ops, Tensor or a Primitive, as api_patches intercepts them."""

from __future__ import annotations

import threading
from typing import Any, Callable

from msprobe.collect.calls.api_calls import ApiCalls
from msprobe.collect.records.recorder import Recorder
from msprobe.frameworks.mindspore.api_table import Api
from msprobe.mindspore.apis.collectives import Collectives
from msprobe.mindspore.gradients.call_gradients import Gradients
from msprobe.mindspore.tensors.late_errors import KEPT, raise_kept


class _Leaf(threading.local):
    depth = 0


class Apis(ApiCalls):
    """Records the calls of one step."""

    frames = 3

    def __init__(self, recorder: Recorder, gradients: Gradients) -> None:
        super().__init__(recorder, gradients, Collectives(recorder))
        self._leaf = _Leaf()

    def call(self, api: Api, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs one API, and records it unless it is part of one that is being recorded."""
        leaf = self._leaf
        if leaf.depth or self._recorder.closed:
            return func(*args, **kwargs)
        leaf.depth = 1
        try:
            output = self.record(api, func, args, kwargs)
        finally:
            leaf.depth = 0
        if KEPT:
            raise_kept()
        return output

    def record_custom(self, api: Api, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return self.call(api, func, args, kwargs)

    def end(self) -> None:
        """The step ends."""
        self._collectives.remove()
