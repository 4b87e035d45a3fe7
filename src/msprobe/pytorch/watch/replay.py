"""Looks for silent data corruption: repeats the forward and the backward of one step, and compares the checksums.

The repetition starts from the random state, the buffers and the inputs of the step, before the optimizer, and leaves
no trace: gradients are computed with `torch.autograd.grad`, and random state and buffers are put back.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import torch

from msprobe.collect import notices
from msprobe.collect.guard import guarded
from msprobe.messages import Message
from msprobe.pytorch.directed.repeat import copy_arguments, digest, random_states, set_random_states
from msprobe.pytorch.gradients.backward_graph import tensors_in
from msprobe.pytorch.watch.parameters import unwrapped
from msprobe.pytorch.watch.ranks import world_size
from msprobe.system.interrupts import let_through
from msprobe.watch.alarms.alarm import Alarm
from msprobe.watch.alarms.detector import in_words
from msprobe.watch.recording import Recording
from msprobe.watch.settings import ReplaySettings
from msprobe.watch.targets import GRAD, OUTPUT

CORRUPTED = "corrupted"
_SHARDED = ("FullyShardedDataParallel", "FSDPModule")
_graph_task = torch._C._current_graph_task_id
Buffers = dict[tuple[Any, str], Any]
"""A copy of each buffer, by its module and its name there. Modules that share a buffer share the copy."""
Outputs = list[tuple[str, str]]
"""The modules in the order in which they returned, with the checksums of what they returned."""


def reason_against(models: list[Any]) -> str:
    """Why this model cannot be repeated; empty if it can."""
    if len(models) != 1:
        return f"it needs one model, and the monitor has {len(models)}"
    model = unwrapped(models[0])
    is_ddp = isinstance(models[0], torch.nn.parallel.DistributedDataParallel)
    if world_size() > 1 and not is_ddp:
        return "the model is spread over ranks: a rank cannot repeat its part alone"
    kinds = {parent.__name__ for module in model.modules() for parent in type(module).__mro__}
    if kinds.intersection(_SHARDED) or any(hasattr(one, "placements") for one in model.parameters()):
        return "the parameters are spread over ranks"
    if "SyncBatchNorm" in kinds:
        return "SyncBatchNorm talks to other ranks, which do not repeat their step at the same time"
    is_compiled = any(one._compiled_call_impl is not None for one in model.modules())
    if is_compiled or (model is not models[0] and not is_ddp):
        return "the model is compiled, or is a DataParallel: msprobe does not see its modules"
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            return f"{name or 'the model'} has a hook of the script, which would run twice"
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks:
            return f"{name} has a hook of the script, which would run twice"
    return ""


@dataclass
class _Step:
    """What the script did in a step that is to be repeated: the first forward with a gradient, and its backward."""

    states: tuple[Any, ...]
    buffers: Buffers
    inputs: Any
    needs_gradient: list[bool]
    training: list[bool]
    versions: list[int]
    autocast: list[tuple[str, bool, Any]]
    outputs: Outputs = field(default_factory=list)
    incoming: dict[int, Any] = field(default_factory=dict)
    """The gradients of what the model returned, by place."""
    task: int = -1
    gradients: dict[str, str] = field(default_factory=dict)


class Replay:
    """Repeats every n-th step. The first repetition only learns what repeats itself at all."""

    def __init__(
        self, models: list[Any], recording: Recording, settings: ReplaySettings, quiet: Callable[[], Any]
    ) -> None:
        """`quiet` returns a context in which the monitor measures nothing."""
        self._recording, self._every, self._quiet = recording, settings.every, quiet
        self._model = unwrapped(models[0])
        self._names = {module: name for name, module in self._model.named_modules()}
        self._parameters = [(name, one) for name, one in self._model.named_parameters() if one.requires_grad]
        self._handles: list[Any] = []
        self._step: Optional[_Step] = None
        self._collects: Optional[Outputs] = None
        self._knows = False
        self._apart: frozenset[str] = frozenset()
        reason = reason_against(models)
        self._on = not reason
        if reason:
            self._switch_off(reason)

    def _switch_off(self, reason: str) -> None:
        self.end()
        self._on = False
        notices.warn(f"replay is off: {reason}. The other alarms are not affected.")

    def prepare(self, step: int) -> None:
        """A step begins: installs hooks if it is to be repeated."""
        self.end()
        if not self._on or step % self._every:
            return
        from msprobe.pytorch import PrecisionDebugger

        if PrecisionDebugger._current is not None:  # it would record the repetition
            notices.warn_once("replay repeats no step while a PrecisionDebugger exists.")
            return
        hook, returned = self._handles.append, self._guarded(self._returned)
        hook(self._model.register_forward_pre_hook(self._guarded(self._begins), with_kwargs=True, prepend=True))
        for module in self._names:
            hook(module.register_forward_hook(returned))
        for name, parameter in self._parameters:
            hook(parameter.register_hook(self._guarded(functools.partial(self._gradient_came, name))))

    def _guarded(self, act: Callable[..., Any]) -> Callable[..., None]:
        """A hook that returns nothing, and whose error ends only the replay."""
        checked = guarded("replay", act, self._give_up)

        def run(*call: Any) -> None:
            checked(*call)

        return run

    def _give_up(self) -> None:
        self.end()
        self._on = False

    def end(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._step, self._collects = [], None, None

    def _begins(self, module: Any, args: Any, kwargs: Any) -> None:
        if self._step is not None or not torch.is_grad_enabled():
            return
        kinds = {"cpu", *(one.device.type for _, one in self._parameters)}
        self._step = _Step(
            states=random_states(),
            buffers=self._copy_buffers(),
            inputs=copy_arguments((args, kwargs)),
            needs_gradient=[one.requires_grad for one in tensors_in((args, kwargs), [])],
            training=[one.training for one in self._names],
            versions=[one._version for _, one in self._parameters],
            autocast=[
                (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in sorted(kinds)
            ],
        )
        self._collects = self._step.outputs

    def _returned(self, module: Any, args: Any, output: Any) -> None:
        if self._collects is None or _graph_task() >= 0:  # a checkpoint runs it again inside the backward
            return
        self._collects.append((self._names[module], digest(output)))
        step = self._step
        if module is not self._model or step is None or self._collects is not step.outputs:
            return
        self._collects = None
        tensors = tensors_in(output, [])
        if not any(one.requires_grad for one in tensors):  # not the forward of a training step
            self._step = None
            return
        for place, tensor in enumerate(tensors):
            if tensor.requires_grad:
                tensor.register_hook(self._guarded(functools.partial(self._incoming_came, step, place)))

    def _incoming_came(self, step: _Step, place: int, gradient: Any) -> None:
        if step is self._step and step.task in (-1, _graph_task()):
            step.task = _graph_task()
            step.incoming[place] = gradient.detach().clone()

    def _gradient_came(self, name: str, gradient: Any) -> None:
        """Only the backward pass of the recorded forward: a later one adds to the same gradient."""
        step = self._step
        if step is not None and self._collects is None and step.task == _graph_task() and name not in step.gradients:
            step.gradients[name] = digest(gradient)

    def check(self, number: int) -> None:
        """The optimizer steps now."""
        step = self._step
        if step is None or not step.incoming or not self._handles:
            return
        if [one._version for _, one in self._parameters] != step.versions:
            self._switch_off("weights change between the forward and the optimizer")
            return
        if [one.training for one in self._names] != step.training:
            return
        unseen = [name for name, one in self._parameters if one.grad is not None and name not in step.gradients]
        if unseen and not self._knows:
            why = f"{unseen[0]} gets its gradient in a pass of its own (reentrant checkpointing, use_reentrant=True)"
            self._switch_off(why)
            return
        try:
            alarm = self._judge(number, step)
        except Exception as error:  # of the model, whose code runs twice
            let_through(error)
            first = (str(error).splitlines() or [""])[0]
            self._switch_off(f"the step cannot be repeated: {type(error).__name__}: {first[:200]}")
            return
        self.end()
        if alarm is not None:
            self._recording.store.add_alarms([alarm])
            self._recording.raise_alarms(number, [alarm])

    def _judge(self, number: int, step: _Step) -> Optional[Alarm]:
        with self._restoring():
            outputs, gradients = self._again(step)
            found = self._difference(step.outputs, step.gradients, outputs, gradients)
            if found is None:
                self._knows = True
                return None
            once_more = self._again(step)
        repeats = self._difference(outputs, gradients, *once_more) is None
        was_right = self._difference(step.outputs, step.gradients, *once_more) is None
        if not self._knows:
            self._learn(found, repeats, step, gradients)
        elif repeats or was_right:
            return _alarm(number, *found, repeats)
        else:
            self._switch_off(f"{found[1] or 'the model'} gives other bytes each time: it is not deterministic")
        return None

    def _learn(self, found: tuple[str, str], repeats: bool, step: _Step, gradients: dict[str, str]) -> None:
        """The first repetition differs. This is not taken for a fault of the machine: the model may have a state of
        its own, and a gradient a part that does not come through what the model returns (a penalty on weights)."""
        kind, name = found
        if kind == OUTPUT or not repeats:
            what = "the output" if kind == OUTPUT else "the gradient"
            self._switch_off(
                f"{what} of {name or 'the model'} does not repeat itself from the same inputs, random state and "
                "buffers: the model has a state of its own, or an operator is not deterministic (msprobe again)"
            )
            return
        apart = {one for one, text in step.gradients.items() if gradients.get(one) != text}
        self._apart, self._knows = frozenset(apart), True
        notices.warn(
            f"replay does not compare the gradients of {len(apart)} of {len(self._parameters)} parameters, such as "
            f"{name}: a part of them does not come through what the model returns."
        )

    def _difference(
        self, ours: Outputs, our_gradients: dict[str, str], theirs: Outputs, their_gradients: dict[str, str]
    ) -> Optional[tuple[str, str]]:
        """The first module whose output differs, or else the first parameter, in the order of the backward pass."""
        for place, (name, text) in enumerate(ours):
            if place >= len(theirs) or theirs[place] != (name, text):
                return OUTPUT, name
        if len(theirs) != len(ours):
            return OUTPUT, theirs[len(ours)][0]
        names = (one for one in our_gradients if one not in self._apart)
        first = next((one for one in names if our_gradients[one] != their_gradients.get(one)), None)
        return None if first is None else (GRAD, first)

    @contextlib.contextmanager
    def _restoring(self) -> Iterator[None]:
        """The script's buffers are set aside, not written: a graph that still lives may need them as they are."""
        states = random_states()
        buffers = [(module, dict(module._buffers)) for module in self._names]
        try:
            with self._quiet():
                yield
        finally:
            self._collects = None
            for module, own in buffers:
                module._buffers.clear()
                module._buffers.update(own)
            set_random_states(states)

    def _copy_buffers(self) -> Buffers:
        copies: dict[int, Any] = {}
        return {
            (module, name): copies.setdefault(id(one), one.detach().clone())
            for module in self._names
            for name, one in module._buffers.items()
            if one is not None
        }

    def _put_buffers(self, buffers: Buffers) -> None:
        """Gives the model copies of its buffers as they were before the step."""
        copies: dict[int, Any] = {}
        for (module, name), one in buffers.items():
            if id(one) not in copies:
                copies[id(one)] = one.clone()
            module._buffers[name] = copies[id(one)]

    def _again(self, step: _Step) -> tuple[Outputs, dict[str, str]]:
        """Repeats the step. The hooks see it: `_collects` is a list of its own, and no gradient is stored."""
        set_random_states(step.states)
        self._put_buffers(step.buffers)
        args, kwargs = copy_arguments(step.inputs)
        for tensor, needed in zip(tensors_in((args, kwargs), []), step.needs_gradient):
            tensor.requires_grad_(needed)
        outputs: Outputs = []
        self._collects = outputs
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for kind, enabled, dtype in step.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
            returned = tensors_in(self._model(*args, **kwargs), [])
        places = [place for place in step.incoming if place < len(returned) and returned[place].requires_grad]
        names = [name for name, _ in self._parameters]
        found = torch.autograd.grad(
            [returned[place] for place in places],
            [one for _, one in self._parameters],
            [step.incoming[place] for place in places],
            allow_unused=True,
        )
        return outputs, {name: digest(one) for name, one in zip(names, found) if one is not None}


def _alarm(number: int, kind: str, name: str, repeats: bool) -> Alarm:
    what = Message("alarm.corrupted_step" if repeats else "alarm.corrupted_repetition")
    sentence = Message("alarm.at", step=number, target=in_words(kind, name), what=what)
    return Alarm(number, CORRUPTED, kind, name, sentence)
