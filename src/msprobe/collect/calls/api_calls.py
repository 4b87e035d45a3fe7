"""APIs (level L1 and mix): what is recorded when an API is called.

A recorded API is a leaf: what it calls itself is not seen. How a call is intercepted is the frontend's business.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Callable, Optional, Protocol

from msprobe.collect.gradients.call_gradients import RECOMPUTED, CallGradients
from msprobe.collect.records.recorder import Recorder
from msprobe.dump.names import FORWARD


class Api(Protocol):
    """What a frontend knows about an API."""

    @property
    def title(self) -> str:
        """Its records are called `{title}.{n}.forward`."""

    @property
    def name(self) -> str: ...

    @property
    def collective(self) -> bool: ...

    @property
    def changes(self) -> bool:
        """Whether it may write memory of which statistics are remembered, apart from `out`."""

    @property
    def members(self) -> str:
        """JSON members that each of its records has."""


class Collectives(Protocol):
    """Finishes the record of a collective, whose output may come later."""

    def leave(self, api: str, call: Optional[int], name: str, args: Any, kwargs: Any, returned: Any) -> None: ...


class ApiCalls:
    """Records the API calls of one step. `frames` is how many frames of ours are between `record` and the script."""

    frames: int
    marked: frozenset[str] = frozenset()
    """The names of the APIs that may write an argument without reading it, apart from `out`."""
    unwritten: Mapping[Any, Any] = MappingProxyType({})
    """Memory that was allocated and not written yet, where the frontend tracks it."""

    def __init__(self, recorder: Recorder, gradients: CallGradients, collectives: Collectives) -> None:
        self._recorder = recorder
        self._gradients: Any = gradients
        self._collectives: Any = collectives
        self._with_inputs = recorder.with_inputs
        # Bound once: they are asked at every call.
        self._running_pass = gradients.running_pass
        self._differentiates = gradients.differentiates
        self._find_inputs = gradients.inputs

    def record(self, api: Any, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs one API and records it. What it returns or raises is the API's own."""
        recorder = self._recorder
        selection = recorder.selection
        title = api.title
        name = f"{title}.{recorder.numbers.take(title)}.{FORWARD}"
        parents = recorder.parents
        call: Optional[int] = None
        inputs: Any = None
        given, named = args, kwargs
        try:
            if self.unwritten or api.name in self.marked or "out" in kwargs:
                given, named = self._mark_arguments(api, args, kwargs)
            wanted = selection.everything or selection.enter(name, parents)
            if wanted and selection.forward:
                call = recorder.enter(name, parents[-1] if parents else None, given, named, self.frames)
            if selection.backward and self._differentiates():
                inputs = self._find_inputs(args, kwargs)
                if not inputs.edges and not inputs.leaves:
                    inputs = None
        except Exception:
            recorder.fault(name, traceback.format_exc())
        try:
            output = func(*args, **kwargs)
        except BaseException as error:
            if api.changes or "out" in kwargs:
                self._distrust_memory()  # it may have written before it raised, as a checkpoint that stops early does
            recorder.fail(call, error, self._members(api))
            if not selection.everything:
                selection.leave(name)
            raise
        try:
            if api.changes or "out" in kwargs:
                self._note_writes(api, args, kwargs)
            produced = output
            if self.unwritten:
                produced = self._mark_output(api, args, kwargs, output)
            if api.collective:
                self._collectives.leave(api.name, call, name, args, kwargs, output)
            elif call is not None:
                extra = self._members(api) if api.members or self._running_pass() >= 0 else ""
                recorder.leave(call, name, produced, extra)
            if not selection.everything:
                selection.leave(name)
            if inputs is not None:
                self._gradients.watch(name, list(parents), inputs, output)
        except Exception:
            recorder.fault(name, traceback.format_exc())
        return output

    def _members(self, api: Api) -> str:
        """JSON members that follow the output of a call."""
        extra = RECOMPUTED if self._running_pass() >= 0 and self._gradients.recomputes() else ""
        if api.members and self._with_inputs:
            return f"{extra}, {api.members}" if extra else api.members
        return extra

    # Which arguments are no inputs: what a call writes without reading it, and memory that nobody has written.

    def _mark_arguments(self, api: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments as they are recorded."""
        return args, kwargs

    def _mark_output(self, api: Any, args: Any, kwargs: Any, output: Any) -> Any:
        """The output as it is recorded; asked while some memory is unwritten."""
        return output

    # Only a frontend that remembers statistics has to know what is written.

    def _note_writes(self, api: Any, args: Any, kwargs: Any) -> None:
        """The API has returned, and has written what it says."""

    def _distrust_memory(self) -> None:
        """Any memory may have been written."""
