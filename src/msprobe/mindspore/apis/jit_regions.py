"""Regions under `mindspore.jit` inside a dynamic run.

In ast mode a region is compiled. It is one record, `Jit.{name}.{n}`. All our hooks are off while it runs; otherwise
MindSpore would compile them into it. In bytecode mode the capture is switched off while collecting: the region runs as
Python and its APIs are recorded.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from msprobe.frameworks.mindspore.api_table import Api
from msprobe.mindspore.apis.api_calls import Apis
from msprobe.mindspore.features import PIJitCaptureContext, graph_api

_JitExecutor = graph_api._JitExecutor


class JitRegions:
    def __init__(self, apis: Optional[Apis], suspend: Callable[[], None], resume: Callable[[], None]) -> None:
        """`suspend` and `resume` remove all our hooks and install them again, around a compiled region. They do not
        raise."""
        self._apis = apis
        self._suspend = suspend
        self._resume = resume
        self._originals: list[tuple[Any, str, Any]] = []
        self._alone = False

    def install(self, alone: bool = False) -> None:
        """`alone`: no other hooks are on, so there is nothing to suspend."""
        if self._originals:
            return
        self._alone = alone
        self._replace(_JitExecutor, "__call__", self._record_region(_JitExecutor.__call__))
        if PIJitCaptureContext is not None:
            self._replace(PIJitCaptureContext, "__enter__", lambda context: None)
            self._replace(PIJitCaptureContext, "__exit__", lambda context, *error: None)

    def remove(self) -> None:
        for holder, name, original in self._originals:
            setattr(holder, name, original)
        self._originals.clear()

    def _replace(self, holder: Any, name: str, replacement: Any) -> None:
        self._originals.append((holder, name, vars(holder)[name]))
        setattr(holder, name, replacement)

    def _record_region(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(executor: Any, *args: Any, **kwargs: Any) -> Any:
            owner = executor.obj
            name = type(owner).__name__ if owner is not None else getattr(executor.fn, "__name__", "function")

            def region(*given: Any, **named: Any) -> Any:
                if not self._alone:
                    self._suspend()
                try:
                    return original(executor, *((owner, *given) if owner is not None else given), **named)
                finally:
                    if not self._alone:
                        self._resume()

            seen = args[1:] if owner is not None else args
            if self._apis is None:
                return region(*seen, **kwargs)
            return self._apis.call(Api(f"Jit.{name}", name, owner=owner), region, seen, kwargs)

        return run
