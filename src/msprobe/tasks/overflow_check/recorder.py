"""overflow_check: a recorder that keeps the records of the calls that overflowed, with their tensors.

Which calls overflow is decided in policy.py, open calls are in call_states.py, and finding_writer.py writes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Optional

from msprobe.collect.records.recorder import Recorder
from msprobe.collect.records.values import Values
from msprobe.collect.step_context import StepContext
from msprobe.stats.finiteness import FINITE
from msprobe.tasks.overflow_check.call_states import CallStates
from msprobe.tasks.overflow_check.finding_writer import FindingWriter, OverflowStop
from msprobe.tasks.overflow_check.inspector import TensorInspector
from msprobe.tasks.overflow_check.open_calls import OpenCall, numbers_state
from msprobe.tasks.overflow_check.own_infinities import call_makes_own
from msprobe.tasks.overflow_check.policy import PRODUCER, Finding, OverflowPolicy
from msprobe.tasks.overflow_check.run import OverflowRun


class OverflowRecorder(Recorder):
    def __init__(
        self, context: StepContext, run: OverflowRun, values: Values, inspector: TensorInspector, batch: Values
    ) -> None:
        super().__init__(context.writer, values, context.selection, with_data=True, with_stacks=False, batch=batch)
        self.inspector = inspector
        self.run = run
        self.policy = OverflowPolicy(run)
        self.findings = FindingWriter(context, self.policy)
        self.calls = CallStates(inspector, run.ranges, self.findings.stacks, self.policy.found)
        self._parameters: Mapping[str, Any] = {}

    @property
    def with_inputs(self) -> bool:
        """Parameters are not rendered with every module; `set_parameters` has them inspected."""
        return False

    # What modules, opaque regions and collectives call.

    def enter(self, name: str, parent: Optional[str], args: Any, kwargs: Any, depth: int = 1) -> int:
        """A call begins that may change anything it receives."""
        call = self.calls.open(args, kwargs, True, (), 0)
        self.calls.locate(call, name, parent, depth + 1)
        return self.calls.add(call)

    def set_parameters(self, tensors: Mapping[str, Any]) -> None:
        """The parameters of the module that `leave` is about to end."""
        self._parameters = tensors

    def leave(self, call: int, name: str, output: Any, extra: str = "") -> None:
        self.end_call(self.calls.take(call), name, output, self.calls.result(output, name), extra)

    def fail(self, call: Optional[int], error: BaseException, extra: str = "") -> None:
        if call is not None:
            self.calls.drop(call)

    def unwaited(self, call: int) -> None:
        self.calls.drop(call)

    def fault(self, name: str, trace: str) -> None:
        """Logs an error of msprobe; OverflowStop goes to the script."""
        error = sys.exc_info()[1]
        if isinstance(error, OverflowStop):
            raise error
        super().fault(name, trace)

    # A call has returned.

    def end_call(self, call: OpenCall, name: str, output: Any, result: Optional[int], extra: str = "") -> None:
        """The call has ended. `result` is the worst state in `output`; None if it has no tensor."""
        parameters, self._parameters = self._parameters, {}
        state = result or FINITE
        look = self.inspector.look
        changed, bad = call.more, {}
        if result is None and call.changing:  # it returns no tensor: its result is what it wrote
            changed = {**changed, **{str(number): tensor for number, tensor in enumerate(call.changing)}}
        if changed:
            bad = {key: tensor for key, tensor in changed.items() if look(tensor) != FINITE}
            state = max([state, *map(look, bad.values())])
        if state == FINITE:
            self.calls.passed(call)
            return
        self.calls.known.clear()  # a known finite tensor may have been written through another name
        complete = call.restore() if call.released else True
        inside = len(self.policy.found) > call.found_before
        role = self.policy.role(state, self._given(call, parameters), inside)
        if role is None:
            if inside or call.lost or not call_makes_own(self.inspector, name, *call.original(), output):
                return
            role = PRODUCER
        members = self._members(call, output, role)
        if not complete:
            members.append('"inputs_gone": true')
        if bad:
            members.append(f'"changed": {self.values.mapping(bad, f"{name}.changed")}')
        if parameters:  # only a producer is replayed: its parameters get files
            path = f"{name}.parameters" if role == PRODUCER else ""
            members.append(f'"parameters": {self.values.mapping(parameters, path)}')
        if extra:
            members.append(extra)
        self.findings.write(self, Finding(name, call.parent, call.stack, state, role), ", ".join(members))

    def _given(self, call: OpenCall, parameters: Mapping[str, Any]) -> int:
        """The worst state of the inputs of a call. An argument that it changed unexpectedly does not count."""
        inspector = self.inspector
        unchanged = [tensor for tensor, version in call.versions if inspector.version(tensor) == version]
        given = max([call.given, *map(inspector.look, (*unchanged, *parameters.values()))])
        return max(given, numbers_state((call.args, call.kwargs)))

    def _members(self, call: OpenCall, output: Any, role: str) -> list[str]:
        self.inspector.fresh()
        path = f"{call.name}.input"
        args, kwargs = call.original()
        members = [
            f'"input_args": {self.values.sequence(args, path)}',
            f'"input_kwargs": {self.values.mapping(kwargs, path)}',
            f'"output": {self.values.result(output, f"{call.name}.output")}',
            f'"overflow": "{role}"',
        ]
        if call.random is not None:
            members.append(f'"random_state": {self.values.value(call.random, f"{call.name}.random_state")}')
        if call.lost or any(self.inspector.version(tensor) != version for tensor, version in call.versions):
            members.append('"inputs_may_be_changed": true')
        circumstances = self.inspector.circumstances()
        return [*members, circumstances] if circumstances else members
