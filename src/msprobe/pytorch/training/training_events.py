"""Records what the training loop does, as events of training.json. Comparing uses them to find the phases of a step.

Torch's own hooks report optimizer steps. Everything else is a Python function that torch looks up by name at each call:
while collecting, msprobe replaces it by a function that records the event and calls the original. Each runs a few times
per step.
"""

from __future__ import annotations

import json
import traceback
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import torch
import torch.nn.utils.clip_grad as clip_grad

from msprobe.collect.probe import Companion
from msprobe.collect.records.phases import CLIPPING, OTHER, Phases
from msprobe.collect.records.recorder import Recorder
from msprobe.pytorch.gradients.after_backward import GradientsAfterBackward
from msprobe.pytorch.modules.model_tree import ModelTree
from msprobe.pytorch.replacements import Replacements
from msprobe.pytorch.tensors import nonplain_tensors
from msprobe.pytorch.tensors.tensor_text import TensorTexts
from msprobe.pytorch.training import optimizer_hooks
from msprobe.pytorch.training.hyper_parameters import groups_of, names_in, number, plain_value, steps_done
from msprobe.pytorch.training.updates import ParameterUpdates

_graph_task = torch._C._current_graph_task_id
_Note = Callable[..., Any]
_OF_THE_SCRIPT = ("backward", "zero_grad", "clip_grad_norm", "clip_grad_value", "scaler_step", "optimizer_step")
"""Events with the line of the script that does it."""


class TrainingEvents(Companion):
    """The events of one step. `around` is called when a backward pass begins and ends."""

    def __init__(
        self,
        recorder: Recorder,
        texts: TensorTexts,
        tree: ModelTree,
        phases: Phases,
        updates: Optional[ParameterUpdates],
        around: Optional[GradientsAfterBackward] = None,
    ) -> None:
        self._recorder = recorder
        self._tree = tree
        self._texts = texts
        self._phases = phases
        self._updates = updates
        self._around = around
        self._models: Sequence[Any] = ()
        self._modules: list[tuple[str, Any]] = []
        self._replacements = Replacements()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._rates: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self._named: set[int] = set()
        self._running: set[int] = set()
        """The optimizers whose step began while collecting."""
        self._steps = 0
        self._recorded_buffers = False

    def install(self, models: Sequence[Any]) -> None:
        if self._replacements:
            return
        self._models = models
        self._phases.set_models(models)
        self._guarded(self._find_modules)()
        self._guarded(self._record_buffers)()
        if self._updates is not None:
            self._guarded(self._updates.begin)(self._named_parameters())
        optimizer_hooks.install(self._guarded(self._step_begins), self._guarded(self._step_ends))
        self._put_around(torch.autograd, "_engine_run_backward", self._backward_begins, self._backward_ends)
        self._put_around(clip_grad, "_get_total_norm", self._clip_begins, self._clip_pauses)
        self._put_around(clip_grad, "_clip_grads_with_norm_", self._clip_continues, self._clip_ends)
        self._put_around(torch.nn.utils, "clip_grad_value_", self._clip_value_begins, self._clip_pauses)
        self._put_around(torch.optim.Optimizer, "zero_grad", self._zero_begins, self._zero_ends)
        self._put_around(torch.nn.Module, "zero_grad", self._zero_begins, self._zero_ends)
        self._put_around(torch.amp.GradScaler, "step", self._scaler_begins, self._scaler_ends)
        self._put_around(torch.amp.GradScaler, "update", None, self._scaler_updated)

    def remove(self) -> None:
        self._replacements.remove()
        optimizer_hooks.remove()
        self._guarded(self._record_updates)()
        self._models, self._modules = (), []
        self._phases.set_models(())
        self._guarded(self._record_rates)()

    def _put_around(self, owner: Any, name: str, before: Optional[_Note], after: Optional[_Note]) -> None:
        noted_before = None if before is None else self._guarded(before)
        noted_after = None if after is None else self._guarded(after)
        self._replacements.put_around(owner, name, noted_before, noted_after)

    def _guarded(self, note: _Note) -> _Note:
        """Keeps our errors away from the script, and our code away from a compiler that traces it."""

        def noted(*args: Any, **kwargs: Any) -> None:
            if torch.compiler.is_compiling() or self._recorder.closed:
                return
            try:
                with torch._C.DisableTorchFunction(), nonplain_tensors.without_modes():
                    note(*args, **kwargs)
            except Exception:
                self._recorder.fault("training.json", traceback.format_exc())

        return noted

    def _note(self, event: str, **members: Any) -> None:
        frames = self._recorder.frames() if event in _OF_THE_SCRIPT else None
        self._recorder.writer.training(json.dumps({"event": event, **members})[1:-1], frames)

    def _find_modules(self) -> None:
        tree = self._tree.plain(self._models)
        if tree is None:
            self._modules = list(_modules_below(self._models))
        else:
            self._modules = [(one.prefix, one.module) for one in tree]

    def _record_buffers(self) -> None:
        """Records the buffers at the beginning of the step, and the parameters of the model itself, which are in no
        record.

        Those on an accelerator are left out, because reading them would wait for the device.
        """
        if self._recorded_buffers:
            return
        self._recorded_buffers = True
        texts = [(name, buffer, self._texts.read_again(buffer)) for name, buffer in _on_host(self._buffers())]
        buffers = ", ".join(f"{json.dumps(name)}: {text}" for name, _, text in texts)
        ours = _on_host(self._own_parameters())
        parameters = ", ".join(f"{json.dumps(name)}: {self._texts.read_again(parameter)}" for name, parameter in ours)
        if self._updates is not None:
            for name, buffer, text in texts:
                self._updates.add_buffer(name, buffer, text)
        if buffers or parameters:
            own = f', "parameters": {{{parameters}}}' if parameters else ""
            self._recorder.writer.training(f'"event": "buffers", "tensors": {{{buffers}}}{own}')

    def _record_updates(self) -> None:
        """stop(): records the parameters and buffers that have changed since start()."""
        self._texts.on_write = None
        members = "" if self._updates is None else self._updates.end(_on_host(self._buffers()))
        if members:
            self._recorder.writer.training(f'"event": "update", {members}')

    def _number(self, optimizer: Any) -> int:
        return self._numbers.setdefault(optimizer, len(self._numbers))

    # Optimizers.

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._steps += 1
        self._running.add(self._number(optimizer))
        has_closure = _has_closure(args, kwargs)
        self._phases.enter_optimizer(has_closure)
        if self._updates is not None:
            self._texts.on_write = None
            self._updates.begin_step(self._optimizer_parameters(optimizer), has_closure)
        self._note_step(optimizer, steps_done(optimizer))

    def _step_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """If collecting began inside this step, in the closure that it was given, its settings are still to record."""
        index = self._number(optimizer)
        if index not in self._running:
            done = steps_done(optimizer)
            self._note_step(optimizer, None if done is None else max(done - 1.0, 0.0), late=True)
        self._running.discard(index)
        self._phases.leave_optimizer(_has_closure(args, kwargs))
        self._note("optimizer_step_end", optimizer=index)

    def _note_step(self, optimizer: Any, done: Optional[float], **more: bool) -> None:
        index = self._number(optimizer)
        kind = type(optimizer)
        groups = groups_of(optimizer)
        self._rates[optimizer] = [group.get("lr") for group in groups]
        if index not in self._named:
            self._named.add(index)
            for group, names in zip(groups, names_in(optimizer, self._parameter_names())):
                if any(name is not None for name in names):
                    group["names"] = names
        name = f"{kind.__module__}.{kind.__qualname__}"
        self._note("optimizer_step", optimizer=index, type=name, steps_done=done, groups=groups, **more)

    def _named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Each parameter of the models under each of its names."""
        for prefix, module in self._modules:
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    yield f"{prefix}{name}", parameter

    def _parameter_names(self) -> dict[int, str]:
        names: dict[int, str] = {}
        for name, parameter in self._named_parameters():
            names.setdefault(id(parameter), name)
        return names

    def _optimizer_parameters(self, optimizer: Any) -> Iterator[tuple[str, Any]]:
        """The parameters of an optimizer: by their names in the model, or by their places in it."""
        index = self._number(optimizer)
        start = f"optimizer.{index}." if index else ""
        for group, names in enumerate(names_in(optimizer, self._parameter_names())):
            for place, (name, parameter) in enumerate(zip(names, optimizer.param_groups[group]["params"])):
                yield f"{start}group.{group}.{place}" if name is None else name, parameter

    def _buffers(self) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for path, module in self._modules:
            for name, buffer in module._buffers.items():
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    yield f"{path}{name}", buffer

    def _own_parameters(self) -> Iterator[tuple[str, Any]]:
        """Parameters of the models themselves: a model has no record, only the modules in it have."""
        for index, model in enumerate(self._models):
            start = f"{index}." if len(self._models) > 1 else ""
            for name, parameter in model._parameters.items():
                if parameter is not None:
                    yield f"{start}{name}", parameter

    def _zero_begins(self, owner: Any, set_to_none: bool = True) -> None:
        whose: dict[str, Any] = {"module": type(owner).__qualname__}
        if isinstance(owner, torch.optim.Optimizer):
            whose = {"optimizer": self._number(owner)}
        self._note("zero_grad", **whose, set_to_none=bool(set_to_none))
        self._phases.enter(OTHER)

    def _zero_ends(self, owner: Any, set_to_none: bool = True) -> None:
        self._phases.leave(OTHER)

    def _record_rates(self) -> None:
        """Records learning rates that a scheduler has changed since the last optimizer step."""
        for optimizer, before in list(self._rates.items()):
            now = [plain_value(group.get("lr")) for group in optimizer.param_groups]
            if now != before:
                self._note("learning_rate", optimizer=self._number(optimizer), lr=now)
        self._rates.clear()

    # Backward passes.

    def _backward_begins(self, outputs: Any, *args: Any, accumulate_grad: bool = False, **kwargs: Any) -> None:
        if _graph_task() < 0:  # not a pass inside another one: that is a recomputation
            self._phases.begin_backward()
            if self._updates is not None:
                self._updates.begin_backward()
            self._note("backward", call="backward" if accumulate_grad else "grad", **self._held_gradients())
            if self._around is not None:
                self._around.begin()

    def _backward_ends(self, outputs: Any, *args: Any, accumulate_grad: bool = False, **kwargs: Any) -> None:
        if _graph_task() < 0:
            if self._around is not None:
                self._around.end()
            if self._updates is not None and self._updates.end_backward():
                self._texts.on_write = self._guarded(self._updates.note_write)
            if accumulate_grad:  # not autograd.grad in the middle of a forward
                self._phases.end_backward()
            self._note("backward_end")

    def _held_gradients(self) -> dict[str, int]:
        """The number of parameters that already have a gradient: the pass adds to it."""
        if not self._models:
            return {}
        every = [one for _, module in self._modules for one in module._parameters.values() if one is not None]
        parameters = {id(one): one for one in every}.values()
        return {"parameters": len(parameters), "with_gradient": sum(one.grad is not None for one in parameters)}

    # Clipping.

    def _clip_begins(
        self, tensors: Any, norm_type: Any = 2.0, error_if_nonfinite: bool = False, foreach: Any = None
    ) -> None:
        self._note("clip_grad_norm", norm_type=plain_value(norm_type), gradients=len(list(tensors)), foreach=foreach)
        self._phases.enter(CLIPPING)

    def _clip_pauses(self, *args: Any, **kwargs: Any) -> None:
        self._phases.leave(CLIPPING)

    def _clip_continues(self, *args: Any, **kwargs: Any) -> None:
        self._phases.enter(CLIPPING)

    def _clip_ends(self, parameters: Any, max_norm: Any, total_norm: Any, foreach: Any = None) -> None:
        self._phases.leave(CLIPPING)
        if self._updates is not None:
            self._updates.take_late_gradients()
        self._note("clip_grad_norm_end", max_norm=plain_value(max_norm), total_norm=number(total_norm))

    def _clip_value_begins(self, parameters: Any, clip_value: Any, foreach: Any = None) -> None:
        self._note("clip_grad_value", clip_value=plain_value(clip_value), foreach=foreach)
        self._phases.enter(CLIPPING)

    # Loss scaling.

    def _scaler_begins(self, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        self._steps = 0
        self._note("scaler_step", optimizer=self._number(optimizer), scale=number(scaler.get_scale()))

    def _scaler_ends(self, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        self._note("scaler_step_end", optimizer=self._number(optimizer), skipped=not self._steps)

    def _scaler_updated(self, scaler: Any, *args: Any, **kwargs: Any) -> None:
        self._note("scaler_update", scale=number(scaler.get_scale()))


def _on_host(tensors: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    return ((name, tensor) for name, tensor in tensors if tensor.device.type == "cpu")


def _has_closure(args: Any, kwargs: Any) -> bool:
    """Whether an optimizer step was called with a closure. These are the arguments of its hook: the optimizer first."""
    return any(callable(one) for one in (*args[1:], *kwargs.values()))


def _modules_below(models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Every module once, with the prefix of the names of its parameters and buffers."""
    for index, model in enumerate(models):
        start = f"{index}." if len(models) > 1 else ""
        for path, module in model.named_modules():
            yield f"{start}{path}." if path else start, module
