"""APIs (level L1 and mix): a TorchFunctionMode that sees every call of torch, whatever name the script uses for it.

The mode is off inside its own handler, so it does not see the calls inside a recorded API: the API is a leaf. For a
Python function of torch that is not in the list, msprobe runs a transparent copy with the mode on, so that the mode
sees the calls inside it. The copy has the same code but does not pass itself to modes again.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Sequence
from types import FunctionType
from typing import Any, Callable, ClassVar, Optional

import torch
import torch.fx
from torch.overrides import TorchFunctionMode

from msprobe.collect.calls.api_calls import ApiCalls
from msprobe.collect.records.recorder import Recorder
from msprobe.frameworks.pytorch.api_table import ANY, FIRST, Api, ApiTable
from msprobe.frameworks.pytorch.operators import ARRIVES_AS
from msprobe.pytorch.apis.collectives import Collectives
from msprobe.pytorch.apis.destinations import MAKERS, MARKED, Destinations
from msprobe.pytorch.apis.made_values import MadeValues, queries
from msprobe.pytorch.apis.mode_stack import is_on, put_on, take_off
from msprobe.pytorch.apis.operator_names import OperatorNames
from msprobe.pytorch.compiled.graph_breaks import breaks_member
from msprobe.pytorch.gradients.backward_graph import InputEdges
from msprobe.pytorch.gradients.call_gradients import Gradients
from msprobe.pytorch.tensors.tensor_text import TensorTexts

_tracing_state = torch._C._get_tracing_state
_NoTorchFunction = torch._C.DisableTorchFunction
_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_PLAIN = (_Tensor, _Parameter)
_as_usual = getattr(torch.Tensor.__torch_function__, "__func__", None)
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)
# The mode also sees calls inside a backward pass: recomputation, the backward of the user's own functions.
_BACKWARD = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
_EXPOSING = frozenset(
    (
        torch.Tensor.data.__get__,
        *(getattr(torch.Tensor, name) for name in ("__array__", "__dlpack__", "data_ptr", "numpy")),
        *(getattr(torch.Tensor, name) for name in ("storage", "untyped_storage")),
    )
)
_SPELLED = frozenset(getattr(torch.Tensor, method) for method in ARRIVES_AS.values())


class _Leaf(threading.local):
    """For one thread: the number of registered APIs it is in, and the functions whose transparent copies it runs."""

    def __init__(self) -> None:
        self.depth = 0
        self.running: list[Any] = []


class Apis(ApiCalls, TorchFunctionMode):
    """Records the calls of one step while it is entered."""

    frames = 2
    marked = MARKED
    current: ClassVar[Optional[Apis]] = None
    """The mode between start() and stop()."""

    def __init__(
        self,
        recorder: Recorder,
        gradients: Gradients,
        texts: TensorTexts,
        table: ApiTable,
        spelling: OperatorNames,
    ) -> None:
        ApiCalls.__init__(self, recorder, gradients, Collectives(recorder, texts))
        TorchFunctionMode.__init__(self)
        self.recorder = recorder
        self._texts = texts
        self._leaf = _Leaf()
        self._table = table
        self._lookup = table.lookup
        self._plain = table.plain - MAKERS
        self._made: Optional[MadeValues] = None
        self._spelling = spelling
        self.resting = False  # after stop(): it may still be on the stack, and records nothing
        self.wrapped: dict[Any, Any] = {}  # wrapper of the script around a method -> the method
        self._twins: dict[Any, Callable[..., Any]] = {}
        self._plain_globals: dict[int, dict[str, Any]] = {}
        self._inside = dict.fromkeys((*table.composite, *_BACKWARD), self._run_inside)
        self._inside.update(dict.fromkeys(MAKERS, self._make))
        self.destinations = Destinations()
        self.unwritten = self.destinations.unwritten

    def follow(self, made: MadeValues) -> None:
        """Follows the values that no recorded call produces."""
        self._made = self.made_values = made
        self._plain = queries(self._plain)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._plain and not kwargs:
            return func(*args)
        kwargs = kwargs or {}
        api = inside = None
        try:
            api = self._lookup.get(func)
            if self.wrapped and func in self.wrapped:
                func = self.wrapped[func]
                api = api or self._lookup.get(func)
            if api is None:
                inside = self._inside.get(func)
                if inside is not None and _overridden(types):
                    inside = None
                if inside is None and isinstance(func, _OPERATORS):
                    api = self._lookup[func]
            if func in _SPELLED:
                spelled = self._spelling.take(func)
                if spelled is not None:
                    api = self._table.operators.get(spelled)
        except Exception:
            self._recorder.fault("torch function", traceback.format_exc())
        if inside is not None:
            return inside(func, args, kwargs)
        if api is not None and not self._recorder.closed and not self.resting and _tracing_state() is None:
            if "out" in kwargs and "extern_kernels" in sys._getframe(1).f_globals:  # Inductor's backward
                return func(*args, **kwargs)
            # A method without arguments arrives with the type of its tensor; others with those that handle functions.
            if types and not (len(types) == 1 and (types[0] is _Tensor or types[0] is _Parameter)):
                if any(map(_is_proxy, types)):  # torch.fx records everything that is done to them
                    return func(*args, **kwargs)
                with _NoTorchFunction():
                    return self.record(api, _with_torch_function(func), args, kwargs)
            return self.record(api, func, args, kwargs)
        try:
            if func in self._table.untracked:
                self._distrust(func, args)
            elif "out" in kwargs or self._table.writes[func]:
                with _NoTorchFunction():
                    self._note_write(self._table.writes[func], args, kwargs)
        except Exception:
            self._recorder.fault("torch function", traceback.format_exc())
        if self._made is None or api is not None or self.resting:
            return func(*args, **kwargs)
        made = func(*args, **kwargs)
        self._made.note(func, args, kwargs, made)
        return made

    def _distrust(self, func: Any, args: Any) -> None:
        """Memory changes, or may change from now on, without a change of a version counter."""
        if self.unwritten and func is not torch.Tensor.data.__get__:
            with _NoTorchFunction():
                self.destinations.note_unknown_write(args)
        if func in _EXPOSING and args:
            with _NoTorchFunction():
                self._texts.expose(args[0])
        else:
            self._texts.forget()

    def _make(self, func: Any, args: Any, kwargs: Any) -> Any:
        """torch.empty and similar functions: the memory that they return is followed until it is written."""
        made = func(*args, **kwargs)
        if self._made is not None and not self.resting:
            self._made.note(func, args, kwargs, made)
        try:
            with _NoTorchFunction():
                self.destinations.add_unwritten(made)
        except Exception:
            self._recorder.fault(func.__name__, traceback.format_exc())
        return made

    def _note_write(self, writes: int, args: Any, kwargs: Any) -> None:
        if writes == ANY:
            self._texts.written((*args, *kwargs.values()))
        else:
            self._texts.written((*args[:writes], kwargs.get("out")))

    def _note_writes(self, api: Api, args: Any, kwargs: Any) -> None:
        if self._made is not None:
            self._made.drop(args, kwargs)
        if api.untracked:
            self._texts.forget()
        elif api.writes == FIRST and args and type(args[0]) in _PLAIN and "out" not in kwargs:
            self._texts.mark_written(args[0])
        elif api.writes == ANY:
            self._texts.written((*args, *kwargs.values()))
        else:
            self._texts.written((*args[: api.writes], kwargs.get("out")))

    def _mark_arguments(self, api: Api, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return self.destinations.mark_arguments(api, args, kwargs)

    def _mark_output(self, api: Api, args: Any, kwargs: Any, output: Any) -> Any:
        self.destinations.note_write(api, args, kwargs)
        return self.destinations.mark_value(output)

    def _distrust_memory(self) -> None:
        self._texts.forget()

    @property
    def busy(self) -> bool:
        """Whether this thread is in a registered API, where the mode is off on purpose."""
        return self._leaf.depth > 0

    def record_custom(self, api: Api, func: Any, args: Any, kwargs: Any) -> Any:
        """`record` for a registered function. Its call does not reach the mode, so the mode is switched off here."""
        if self._leaf.depth or self._recorder.closed:
            return func(*args, **kwargs)
        self._leaf.depth += 1
        on = is_on(self)
        if on:
            take_off(self)
        try:
            return self.record(api, func, args, kwargs)
        finally:
            if on:
                put_on(self)
            self._leaf.depth -= 1

    def open_opaque(self, api: Api, args: Any) -> Any:
        """Begins a record of a region that runs without the mode."""
        title = f"{api.prefix}.{api.name}"
        recorder = self._recorder
        name = f"{title}.{recorder.numbers.take(title)}.forward"
        parents = list(recorder.parents)
        selection = recorder.selection
        if recorder.closed or not (selection.everything or selection.enter(name, parents)):
            return None
        call = None
        if selection.forward:
            call = recorder.enter(name, parents[-1] if parents else None, args, {}, 3)
        inputs = InputEdges(args, {}) if selection.backward and torch.is_grad_enabled() else None
        return call, name, parents, inputs

    def close_opaque(self, record: Any, output: Any, breaks: Sequence[str] = ()) -> None:
        """Ends the record of the region. `breaks`: the graph breaks of compiled code."""
        call, name, parents, inputs = record
        recorder = self._recorder
        if recorder.closed:
            return
        if call is not None:
            members = [self._gradients.recompute_member(), breaks_member(breaks)]
            recorder.leave(call, name, output, ", ".join(filter(None, members)))
        if not recorder.selection.everything:
            recorder.selection.leave(name)
        if inputs is not None and output is not None:
            self._gradients.watch(name, parents, inputs, output)

    def pause(self) -> None:
        """stop(): no more calls come, but a collective may still be running."""
        self._collectives.pause()

    def drop_tensors(self) -> None:
        """Drops all references to tensors of the script, also the weak ones."""
        self._texts.forget()
        if self._made is not None:
            self._made.forget()

    def end(self) -> None:
        """The step ends."""
        self._collectives.remove()

    def _run_inside(self, func: Any, args: Any, kwargs: Any) -> Any:
        running = self._leaf.running
        if func in running:  # a function inside the copy has passed it to us again
            return func(*args, **kwargs)
        twin = func
        try:
            twin = self._twins.get(func) or self._transparent_copy(func)
            running.append(func)
            put_on(self)
        except Exception:
            self._recorder.fault(func.__name__, traceback.format_exc())
        try:
            return twin(*args, **kwargs)
        finally:
            try:
                running.remove(func)
                if is_on(self):  # not after a stop() inside it
                    take_off(self)
                self._put_on_later()
            except Exception:
                self._recorder.fault(func.__name__, traceback.format_exc())

    def _put_on_later(self) -> None:
        """A start() inside a backward pass has put its mode on the pass's own stack, which has ended."""
        later = Apis.current
        if later is not None and later is not self and not is_on(later):
            put_on(later)

    def _transparent_copy(self, func: Any) -> Callable[..., Any]:
        """A transparent copy of a function: the same code, with globals in which no argument and no mode has torch
        functions."""
        key = id(func.__globals__)
        plain = self._plain_globals.get(key)
        if plain is None:
            plain = self._plain_globals[key] = dict(func.__globals__)
            if plain.get("torch") is torch:  # torch.nn.init uses torch.overrides
                plain["torch"] = _PlainTorch()
            for name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
                if name in plain:
                    plain[name] = _never
        twin = FunctionType(func.__code__, plain, func.__name__, func.__defaults__, func.__closure__)
        twin.__kwdefaults__ = func.__kwdefaults__
        self._twins[func] = twin
        return twin


def _with_torch_function(func: Any) -> Callable[..., Any]:
    """Calls `func` if arguments have their own __torch_function__, which sees this call but not our work."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._EnableTorchFunction():
            return func(*args, **kwargs)

    return call


def _is_proxy(kind: type) -> bool:
    return issubclass(kind, torch.fx.Proxy)


def _overridden(types: Any) -> bool:
    """Whether the type of an argument has its own __torch_function__: torch calls it first."""
    others = [kind.__torch_function__ for kind in types if kind not in _PLAIN]
    return any(getattr(function, "__func__", None) is not _as_usual for function in others)


def _never(*tensors: Any) -> bool:
    return False


class _PlainOverrides:
    """`torch.overrides`, in which nothing has a torch function."""

    has_torch_function = has_torch_function_unary = has_torch_function_variadic = staticmethod(_never)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.overrides, name)


class _PlainTorch:
    """`torch` in the globals of a transparent copy."""

    overrides = _PlainOverrides()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)
