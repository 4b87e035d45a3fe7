"""overflow_check, backward: judges the gradients of a call when all of them have come, and those of parameters.

The inputs of a forward call are held until then, so that a producer can be replayed: by weak references if the
framework keeps them alive for the backward, otherwise by strong ones, up to the limit of the inspector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from msprobe.collect.gradients.backward_record import BackwardRecord, Places
from msprobe.collect.gradients.held_gradients import HeldGradients
from msprobe.collect.records.values import quoted
from msprobe.dump.names import backward_of
from msprobe.stats.finiteness import FINITE
from msprobe.tasks.overflow_check.open_calls import held, restored
from msprobe.tasks.overflow_check.policy import PRODUCER, Finding
from msprobe.tasks.overflow_check.recorder import OverflowRecorder


class _Received:
    """The arguments of a forward call, its stack, and JSON members of its record."""

    __slots__ = ("args", "bytes", "kwargs", "members", "stack")

    def __init__(self, stack: Optional[int], args: Any, kwargs: Any, size: int, members: str) -> None:
        self.stack = stack
        self.members = members
        self.args = args
        self.kwargs = kwargs
        self.bytes = size


class JudgedGradients(HeldGradients):
    """Gradients of calls, which a BackwardJudge judges when all of one call have come."""

    judge: BackwardJudge

    def _take_incoming(self, record: BackwardRecord, places: Places, grads: Any) -> None:
        super()._take_incoming(record, places, grads)
        if not record.remaining:
            self.judge.pass_by([grads[number] for _, number in places])

    def _judge(self, record: BackwardRecord, incoming: list[Any], outgoing: list[Any]) -> None:
        self.judge.judge(record.name, record.parent, incoming, outgoing, record.shared)


class BackwardJudge:
    """Judges the gradients of one step."""

    def __init__(self, recorder: OverflowRecorder) -> None:
        self._recorder = recorder
        self._received: dict[str, _Received] = {}
        self._bytes = 0
        self._roles: dict[str, str] = {}
        self._parameters: dict[str, dict[str, str]] = {}

    def remember(self, name: str, stack: Optional[int], args: Any, kwargs: Any, members: str = "") -> None:
        """Keeps a forward call whose gradients will be judged. `members` go into the record of a producer."""
        inspector = self._recorder.inspector
        size = sum(map(inspector.size, inspector.arguments(args, kwargs))) if inspector.budget else 0
        if inspector.budget and self._bytes + size <= inspector.budget:
            self._bytes += size
            self._received[backward_of(name)] = _Received(stack, args, kwargs, size, members)
            return
        given = held(kwargs, inspector.hold) if kwargs else {}
        self._received[backward_of(name)] = _Received(stack, held(args, inspector.hold), given, 0, members)

    def judge(
        self, name: str, parent: Optional[str], incoming: list[Any], outgoing: list[Any], shared: Sequence[int]
    ) -> None:
        """`shared` numbers the arguments that share one gradient."""
        recorder, inspector = self._recorder, self._recorder.inspector
        forward = self._received.pop(name, None)
        if forward is not None:
            self._bytes -= forward.bytes
        found = FINITE
        for grad in outgoing:
            if grad is not None:
                found = max(found, inspector.look(grad, recorder.run.ranges, name))
        if found == FINITE:
            if all(grad is None for grad in outgoing):
                self.pass_by(incoming)
            return
        given = max((inspector.look(grad) for grad in incoming if grad is not None), default=FINITE)
        role = recorder.policy.backward_role(name, found, given)
        if role is None:
            return
        inspector.fresh()
        members = [
            f'"input": {recorder.values.sequence(incoming, f"{name}.input")}',
            f'"output": {recorder.values.sequence(outgoing, f"{name}.output")}',
            f'"overflow": "{role}"',
        ]
        if shared:
            members.append(f'"shared_gradient": {list(shared)}')
        if forward is not None and role == PRODUCER:
            members += self._forward_members(name, forward)
        stack = None if forward is None else forward.stack
        recorder.findings.write(recorder, Finding(name, parent, stack, found, role, backward=True), ", ".join(members))

    def _forward_members(self, name: str, forward: _Received) -> list[str]:
        """The inputs of the forward call, with which a replay runs it again."""
        recorder = self._recorder
        path = f"{name}.forward_input"
        args, complete = restored(forward.args)
        kwargs, kwargs_complete = restored(forward.kwargs)
        members = [
            f'"forward_args": {recorder.values.sequence(args, path)}',
            f'"forward_kwargs": {recorder.values.mapping(kwargs, path)}',
        ]
        if not (complete and kwargs_complete):
            members.append('"forward_inputs_gone": true')
        return [*members, *filter(None, (forward.members, recorder.inspector.circumstances()))]

    def pass_by(self, gradients: list[Any]) -> None:
        """Gradients of a call whose inputs need none: a bad gradient shows only in the parameters of the call."""
        policy, look = self._recorder.policy, self._recorder.inspector.look
        if not policy.met_bad_gradient:
            policy.met_bad_gradient = any(look(grad) != FINITE for grad in gradients if grad is not None)

    def parameter(self, record: str, name: str, gradient: Any) -> None:
        """The gradient of one parameter of a module; `record` is the module's `parameters_grad`."""
        recorder = self._recorder
        found = recorder.inspector.look(gradient)
        if found == FINITE:
            return
        role = self._roles.setdefault(record, recorder.policy.parameter_role())
        recorder.inspector.fresh()
        texts = self._parameters.setdefault(record, {})
        texts[name] = f"{quoted(name)}: [{recorder.values.value(gradient, f'{record}.{name}')}]"
        members = ", ".join([*texts.values(), f'"overflow": "{role}"'])
        recorder.findings.write(recorder, Finding(record, None, None, found, role, backward=True), members)

    def close(self) -> None:
        self._received.clear()
