"""Parameters, their gradients and their optimizer state.

Gradients are read just before the optimizer uses them: after reduction, unscaling and clipping, and before they are set
to None. The hooks are on the optimizers of the monitor, or on all optimizers if it has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional

import numpy as np
import torch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from msprobe.frameworks.pytorch.tensors import CODES
from msprobe.pytorch.watch.ranks import world_size
from msprobe.pytorch.watch.tensors import Gauge, device_change, device_sample, is_dense, local, shard_of
from msprobe.stats.samples import Place
from msprobe.watch.gauge import Samples
from msprobe.watch.recording import Recording, put_updates
from msprobe.watch.selection import Filter, plain_name
from msprobe.watch.step_figures import StepFigures
from msprobe.watch.targets import GRAD_BEFORE_CLIP, GRAD_LOCAL, LEARNING_RATE, UPDATE, WEIGHT, Target

_queue_callback = torch.autograd.Variable._execution_engine.queue_callback


class Parameter:
    """One watched parameter with the rows of its figures."""

    __slots__ = ("_dtype", "_place", "_state", "before", "name", "position", "rows", "shard", "state", "tensor")

    def __init__(self, name: str, tensor: Any, position: int) -> None:
        self.name, self.tensor, self.position = name, tensor, position
        self.shard = shard_of(tensor)
        self.rows: dict[str, int] = {}
        self.before: Any = None  # a sample of the weight before the step
        self.state: list[tuple[str, Any, int]] = []  # the tensors of its optimizer state: key, tensor, row
        self._state: tuple[Any, int] = (None, 0)
        self._dtype: Any = None
        self._place: Optional[tuple[int, int, int]] = None

    def row(self, kind: str, recording: Recording) -> int:
        row = self.rows.get(kind)
        if row is None:
            here = local(self.tensor)
            dtype = str(here.dtype).partition(".")[2]
            target = Target(kind, self.name, self.position, tuple(here.shape), dtype, self.shard)
            row = self.rows[kind] = recording.row(target)
        return row

    def place(self) -> Optional[tuple[int, int, int]]:
        """Address, dtype code and size, where it is trained and in host memory without gaps."""
        tensor, known = local(self.tensor), self._place
        if not self.tensor.requires_grad:
            return None
        same = known is not None and tensor.data_ptr() == known[0] and tensor.numel() == known[2]
        if same and tensor.dtype is self._dtype and tensor.is_contiguous():
            return known
        self._dtype, self._place = tensor.dtype, None
        if is_dense(tensor):
            self._place = (tensor.data_ptr(), CODES[tensor.dtype], tensor.numel())
        return self._place

    def look_at_state(self, state: Any, recording: Recording) -> None:
        """Finds the tensors of its optimizer state, if they are not those of the last step."""
        known, size = self._state
        if state is known and len(state) == size and all(state.get(key) is tensor for key, tensor, _ in self.state):
            return
        self._state = (state, len(state))
        self.state = [
            (key, value, self.row(f"state.{key}", recording))
            for key, value in state.items()
            if isinstance(value, torch.Tensor) and value.dim() and value.shape == self.tensor.shape
        ]


class Parameters:
    """All watched parameters of the models."""

    def __init__(self, models: list[Any], recording: Recording, measure: Gauge) -> None:
        self._recording = recording
        self._gauge = measure
        self._samples = Samples()
        self._rows_of_all: dict[str, list[int]] = {}
        self.main_grad = False  # Megatron keeps gradients in its own attribute
        self._filter = Filter(recording.settings)
        named = _named_parameters(models)
        self.all = [
            Parameter(name, tensor, position)
            for position, (name, tensor) in enumerate(named)
            if not is_lazy(tensor) and self._filter.wants(name)
        ]
        self._filter.report()
        self.by_id = {id(parameter.tensor): parameter for parameter in self.all}
        recording.trainable = frozenset(one.name for one in self.all if one.tensor.requires_grad)

    def read_weights(self, found: StepFigures) -> None:
        self._gauge.read_all([local(one.tensor) for one in self.all], found, self._rows(WEIGHT, self.all))

    def read_gradients(self, kind: str, found: StepFigures, of: Optional[list[Parameter]] = None) -> None:
        chosen = self.all if of is None else of
        gradients = [one.tensor.grad for one in chosen]
        if self.main_grad:
            gradients = [
                getattr(one.tensor, "main_grad", None) if gradient is None else gradient
                for one, gradient in zip(chosen, gradients)
            ]
        there = [one for one, gradient in zip(chosen, gradients) if gradient is not None]
        tensors = [local(gradient) for gradient in gradients if gradient is not None]
        self._gauge.read_all(tensors, found, self._rows(kind, there))

    def _rows(self, kind: str, of: list[Parameter]) -> list[int]:
        recording = self._recording
        if len(of) < len(self.all):
            return [one.row(kind, recording) for one in of]
        rows = self._rows_of_all.get(kind)
        if rows is None:
            rows = self._rows_of_all[kind] = [one.row(kind, recording) for one in self.all]
        return rows

    def copy_figures(self, source: str, kind: str, found: StepFigures) -> None:
        measured = [one for one in self.all if one.rows.get(source, -1) in found]
        found.copy([one.rows[source] for one in measured], self._rows(kind, measured))

    def sample(self, unchanged: bool) -> None:
        """Remembers weights before a step. `unchanged`: they are still those that `read_updates` saw."""
        if not unchanged:
            self._samples.take(self._located())
        for one in self.all:
            tensor = local(one.tensor)
            one.before = device_sample(tensor) if tensor.requires_grad and not tensor.is_cpu else None

    def _located(self) -> list[Place]:
        """Number, address, dtype code and size of the parameters in host memory."""
        places = ((number, one.place()) for number, one in enumerate(self.all))
        return [(number, *place) for number, place in places if place is not None]

    def read_updates(self, found: StepFigures) -> None:
        numbers, moved, weights = self._samples.changes(self._located())
        put_updates(found, [self.all[number].row(UPDATE, self._recording) for number in numbers], moved, weights)
        for one in self.all:
            before, one.before = one.before, None
            if before is not None:
                change, weight = device_change(before, local(one.tensor))
                put_updates(found, [one.row(UPDATE, self._recording)], np.array([change]), np.array([weight]))

    def read_state(self, optimizers: list[Any], found: StepFigures) -> None:
        tensors, rows = [], []
        for optimizer in optimizers:
            state = getattr(optimizer, "state", {})
            for one in self.all:
                mine = state.get(one.tensor)
                if mine is None:
                    mine = state.get(getattr(one.tensor, "main_param", None), {})
                one.look_at_state(mine, self._recording)
                for _, value, row in one.state:
                    tensors.append(local(value))
                    rows.append(row)
        self._gauge.read_all(tensors, found, rows)


def _named_parameters(models: list[Any]) -> Iterator[tuple[str, Any]]:
    known: set[int] = set()
    for number, model in enumerate(models):
        inner = unwrapped(model)
        for name, tensor in inner.named_parameters():
            if id(tensor) not in known:
                known.add(id(tensor))
                yield (f"{number}." if len(models) > 1 else "") + plain_name(name), tensor


def unwrapped(model: Any) -> Any:
    """The model inside DistributedDataParallel, DataParallel and torch.compile."""
    while True:
        if isinstance(model, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


def torch_optimizers(given: Any) -> list[Any]:
    """The torch optimizers in the user's argument: one, several, or wrappers with an attribute `optimizer`."""
    listed = [] if given is None else list(given.values()) if isinstance(given, dict) else given
    listed = listed if isinstance(listed, (list, tuple)) else [listed]
    found = []
    for optimizer in listed:
        while hasattr(getattr(optimizer, "optimizer", None), "param_groups"):  # accelerate, Lightning, Megatron
            optimizer = optimizer.optimizer
        found.append(optimizer)
    return found


class OptimizerHooks:
    """Calls `before` just before an optimizer uses its gradients; reads learning rates."""

    def __init__(
        self,
        optimizers: list[Any],
        before: Callable[[Any, list[Any]], None],
        parameters: Parameters,
        guarded: Callable[[Any], Any],
    ) -> None:
        self._before = before
        self._parameters = parameters
        self.optimizers = [one for one in optimizers if hasattr(one, "param_groups")]
        self._adopts = not self.optimizers
        hookable = [one for one in self.optimizers if hasattr(one, "register_step_pre_hook")]
        stepping, stepped = guarded(self._stepping), guarded(self._stepped)
        if self._adopts:
            self._handles = [register_optimizer_step_pre_hook(stepping), register_optimizer_step_post_hook(stepped)]
        else:
            self._handles = [one.register_step_pre_hook(stepping) for one in hookable]
            self._handles += [one.register_step_post_hook(stepped) for one in hookable]
        self.sees_steps = bool(self._handles)

    def _stepping(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not _has_closure(args, kwargs):
            self._look(optimizer)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """A closure runs the backward pass inside the step: its gradients exist only after the step."""
        if _has_closure(args, kwargs):
            self._look(optimizer)

    def _look(self, optimizer: Any) -> None:
        by_id = self._parameters.by_id
        mine = [by_id[id(p)] for group in optimizer.param_groups for p in group["params"] if id(p) in by_id]
        if mine and self._adopts and not any(optimizer is known for known in self.optimizers):
            self.optimizers.append(optimizer)
        if mine or self._has_copies():
            self._before(optimizer, mine or self._parameters.all)

    def _has_copies(self) -> bool:
        """Whether the optimizers step copies of the parameters, as Megatron's do: none has one that is watched."""
        if self._adopts:
            return False
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        return not any(id(p) in self._parameters.by_id for group in groups for p in group["params"])

    def learning_rates(self) -> tuple[dict[str, float], frozenset[str]]:
        """The learning rates as scalars, and the names of parameters whose rate is 0."""
        rates: dict[str, float] = {}
        idle = []
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                rate = group.get("lr")
                if rate is None:
                    continue
                number = len(rates)
                rates[LEARNING_RATE if not number else f"{LEARNING_RATE}.{number}"] = float(rate)
                if float(rate) == 0:
                    known = (self._parameters.by_id.get(id(parameter)) for parameter in group["params"])
                    idle += [one.name for one in known if one is not None]
        return rates, frozenset(idle)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _has_closure(args: Any, kwargs: Any) -> bool:
    """Whether the arguments of a step have a closure; the first argument may be the optimizer."""
    given = [*args, kwargs.get("closure")]
    return any(callable(one) and not isinstance(one, torch.optim.Optimizer) for one in given)


class BackwardHooks:
    """Reads gradients during the backward pass: before reduction (grad_local), and at its end, before clipping."""

    def __init__(
        self, models: list[Any], parameters: Parameters, kinds: Iterable[str], guarded: Callable[[Any], Any]
    ) -> None:
        self._models = models
        self._parameters = parameters
        self._local = GRAD_LOCAL in kinds
        self._before_clip = GRAD_BEFORE_CLIP in kinds
        self._guarded = guarded
        self._handles: list[Any] = []
        self._queued = False
        self._at_end = False  # whether gradients are read at the end of the pass, not when each of them comes
        self._found = StepFigures(0)

    def install(self, found: StepFigures) -> None:
        self._found = found
        self._queued = False
        if self._handles or not (self._local or self._before_clip):
            return
        self._at_end = world_size() == 1 and not any(map(_has_hooks, self._parameters.all))
        came = self._guarded(self._came)
        for one in self._parameters.all:
            if one.tensor.requires_grad and one.tensor.is_leaf:
                self._handles.append(one.tensor.register_post_accumulate_grad_hook(came))
        if self._before_clip and any(one.shard for one in self._parameters.all):
            returned = self._guarded(self._returned)
            self._handles += [model.register_forward_hook(returned) for model in self._models]

    def _returned(self, model: Any, args: Any, output: Any) -> None:
        """FSDP2 puts gradients into the parameters itself, without their hooks: the backward pass begins here."""
        outputs = list(output.values()) if isinstance(output, dict) else output
        for tensor in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(self._guarded(self._began))

    def _began(self, gradient: Any) -> None:
        self._queue()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _came(self, tensor: Any) -> None:
        if self._at_end:
            self._queue()
            return
        one = self._parameters.by_id.get(id(tensor))
        if one is not None and self._local:
            self._parameters.read_gradients(GRAD_LOCAL, self._found, [one])
        if self._before_clip:
            self._queue()

    def _queue(self) -> None:
        if self._handles and not self._queued:
            self._queued = True
            _queue_callback(self._guarded(self._first_callback))

    def _first_callback(self) -> None:
        """Reducers queue callbacks later than ours: queue again, to run after them."""
        _queue_callback(self._guarded(self._last_callback))

    def _last_callback(self) -> None:
        self._queued = False
        if not self._handles:
            return
        if self._local and self._at_end:
            self._parameters.read_gradients(GRAD_LOCAL, self._found)
        if self._local and self._before_clip and world_size() == 1:  # nothing is reduced
            self._parameters.copy_figures(GRAD_LOCAL, GRAD_BEFORE_CLIP, self._found)
        elif self._before_clip:
            self._parameters.read_gradients(GRAD_BEFORE_CLIP, self._found)


def _has_hooks(one: Parameter) -> bool:
    """Whether somebody may use up the gradient as soon as it is there: an optimizer in the backward pass."""
    return bool(getattr(one.tensor, "_post_accumulate_grad_hooks", None))
