"""APIs (level L1 and mix): what msprobe records when an API is called.

A recorded API is a leaf: the calls inside it are not recorded. The frontend intercepts the calls.
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
        """Whether it may write memory with cached statistics, apart from `out`."""

    @property
    def members(self) -> str:
        """JSON members that each of its records has."""


class Collectives(Protocol):
    """Finishes the record of a collective. Its output may come later than the call."""

    def leave(self, api: str, call: Optional[int], name: str, args: Any, kwargs: Any, returned: Any) -> None: ...


class MadeValues(Protocol):
    """The values of this step that no recorded call produced."""

    @property
    def entries(self) -> Mapping[int, Any]: ...

    def tell(self, name: str, args: Any, kwargs: Any) -> None:
        """A recorded call takes these arguments."""


class ApiCalls:
    """Records the API calls of one step. `frames` is the number of frames of msprobe on the stack of the script when
    `record` runs, `record` included."""

    frames: int
    marked: frozenset[str] = frozenset()
    """The names of the APIs that may write an argument without reading it, apart from `out`."""
    made_values: Optional[MadeValues] = None
    """Where values come from that no recorded call produces, where the frontend follows them."""
    unwritten: Mapping[Any, Any] = MappingProxyType({})
    """Memory that was allocated and not written yet, where the frontend tracks it."""

    def __init__(self, recorder: Recorder, gradients: CallGradients, collectives: Collectives) -> None:
        self._recorder = recorder
        self._gradients: Any = gradients
        self._collectives: Any = collectives
        self._with_inputs = recorder.with_inputs
        # Bound once: they are used at every call.
        self._running_pass = gradients.running_pass
        self._differentiates = gradients.differentiates
        self._find_inputs = gradients.inputs
        self._take_number = recorder.numbers.take

    def record(self, api: Any, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs one API and records it. Returns or raises what the API returns or raises."""
        recorder = self._recorder
        selection = recorder.selection
        title = name = api.title
        parents = recorder.parents
        call: Optional[int] = None
        inputs: Any = None
        given, named = args, kwargs
        has_out = "out" in kwargs
        try:
            name = f"{title}.{self._take_number(title)}.{FORWARD}"
            if self.unwritten or has_out or api.name in self.marked:
                given, named = self._mark_arguments(api, args, kwargs)
            wanted = selection.everything or selection.enter(name, parents)
            if wanted and selection.forward:
                call = recorder.enter(name, parents[-1] if parents else None, given, named, self.frames)
                if self.made_values is not None and self.made_values.entries:
                    self.made_values.tell(name, args, kwargs)
            if selection.backward and self._differentiates():
                inputs = self._find_inputs(args, kwargs)
                if not inputs.edges and not inputs.leaves:
                    inputs = None
        except Exception:
            recorder.fault(name, traceback.format_exc())
        try:
            output = func(*args, **kwargs)
        except BaseException as error:
            self._failed(api, call, name, error, has_out)
            raise
        try:
            if has_out or api.changes:
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

    def _failed(self, api: Any, call: Optional[int], name: str, error: BaseException, has_out: bool) -> None:
        """The API raised."""
        try:
            if api.changes or has_out:
                self._distrust_memory()  # it may have written before it raised, like a checkpoint that stops early
            self._recorder.fail(call, error, self._members(api))
            if not self._recorder.selection.everything:
                self._recorder.selection.leave(name)
        except Exception:
            self._recorder.fault(name, traceback.format_exc())

    def _members(self, api: Api) -> str:
        """JSON members that follow the output of a call."""
        extra = RECOMPUTED if self._running_pass() >= 0 and self._gradients.recomputes() else ""
        if api.members and self._with_inputs:
            return f"{extra}, {api.members}" if extra else api.members
        return extra

    # Arguments that are not inputs: what a call only writes, and memory that no call has written yet.

    def _mark_arguments(self, api: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments in the form to record."""
        return args, kwargs

    def _mark_output(self, api: Any, args: Any, kwargs: Any, output: Any) -> Any:
        """The output in the form to record. Called only while some memory is unwritten."""
        return output

    # Only a frontend that caches statistics needs to know what is written.

    def _note_writes(self, api: Any, args: Any, kwargs: Any) -> None:
        """The API has returned: what it writes may have changed."""

    def _distrust_memory(self) -> None:
        """Any memory may have been written."""
