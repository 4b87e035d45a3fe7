"""Kernels (level L2): ATen operators, forward and backward, on any device.

A dispatch mode sees every operator that reaches a backend, also those that autograd runs in a backward pass and those
of optimizers. While an API runs, its name is among the parents in the recorder, so an operator knows its API. The
autograd nodes of an API have consecutive sequence numbers; with these, the operators of a backward pass find their API.
"""

from __future__ import annotations

import traceback
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
from torch._C import (
    _get_dispatch_stack_at,
    _len_torch_dispatch_stack,
    _pop_torch_dispatch_stack,
    _push_on_torch_dispatch_stack,
)
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe.collect.calls.kernel_calls import enter_kernel, enter_place, leave_place
from msprobe.collect.calls.module_calls import ModulePlaces
from msprobe.collect.records.recorder import Recorder
from msprobe.dump.names import BACKWARD, FORWARD, backward_of
from msprobe.frameworks.pytorch.api_table import Api
from msprobe.pytorch.apis.api_calls import Apis
from msprobe.pytorch.kernels.ascend_dump import AscendDump
from msprobe.pytorch.modules.model_tree import is_compiled_in_place, is_opaque
from msprobe.pytorch.modules.module_calls import Modules
from msprobe.pytorch.tensors.tensor_text import TensorTexts

_graph_task = torch._C._current_graph_task_id
_current_node = torch._C._current_autograd_node
_sequence_number = torch.autograd._get_sequence_nr
_NoTorchFunction = torch._C.DisableTorchFunction
# Operators that run no kernel of their own, or do not fill memory.
_WITHOUT_KERNEL = frozenset(
    (
        *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
        *("detach", "detach_", "lift", "lift_fresh", "alias", "_unsafe_view", "_reshape_alias", "resize_", "set_"),
        *("_local_scalar_dense", "is_same_size"),
    )
)
_NO_PARENTS: tuple[str, ...] = ()


class NodeOwners:
    """Which API made an autograd node: ranges of sequence numbers, in the order of the calls."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._calls: list[tuple[int, tuple[str, ...]]] = []

    def add(self, first: int, end: int, parents: tuple[str, ...]) -> None:
        self._starts.append(first)
        self._calls.append((end, parents))

    def parents(self, node: Any) -> tuple[str, ...]:
        """The backward names of the modules and the API that made this node, outermost first; none if unknown."""
        if node is None:
            return _NO_PARENTS
        number = node._sequence_nr()
        place = bisect_right(self._starts, number) - 1
        if place < 0 or number >= self._calls[place][0]:
            return _NO_PARENTS
        return self._calls[place][1]


class Kernels(TorchDispatchMode):
    """Records the operators of one step while it is on."""

    def __init__(self, recorder: Recorder, texts: TensorTexts) -> None:
        super().__init__()
        self.recorder = self._recorder = recorder
        self._texts = texts
        self.origins = NodeOwners()
        self.replays = False
        self.with_views = False  # scope or list names a view: it is recorded, although no kernel runs
        self.forced: Optional[tuple[str, ...]] = None  # the parents of the current call, in a replay
        self._titles: dict[Any, str] = {}
        self._mutable: dict[Any, tuple[int, ...]] = {}
        self._distrusted: set[Any] = set()

    def install(self) -> None:
        """Puts the mode below all others, so that each of them removes itself when it ends."""
        above = [_pop_torch_dispatch_stack(None) for _ in range(_len_torch_dispatch_stack())]
        _push_on_torch_dispatch_stack(self)
        for mode in reversed(above):
            _push_on_torch_dispatch_stack(mode)

    def remove(self) -> None:
        if not any(_get_dispatch_stack_at(place) is self for place in range(_len_torch_dispatch_stack())):
            return
        above = []
        while (mode := _pop_torch_dispatch_stack(None)) is not self:
            above.append(mode)
        for mode in reversed(above):
            _push_on_torch_dispatch_stack(mode)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        begun: Optional[tuple[str, str, Sequence[str]]] = None
        try:
            begun = None if self._recorder.closed else self._begin(func)
        except Exception:
            self._recorder.fault("a kernel", traceback.format_exc())
        if begun is None:
            return func(*args, **kwargs)
        with _NoTorchFunction():
            call = enter_kernel(self._recorder, *begun, args, kwargs, 3)
            try:
                output = func(*args, **kwargs)
            except BaseException as error:
                self._fail(begun[0], call, error)
                raise
            self._leave(func, begun[0], call, args, output)
        return output

    def _begin(self, func: Any) -> Optional[tuple[str, str, Sequence[str]]]:
        """The name, the direction and the parents of a call that begins; None if it is not recorded."""
        title = self._titles.get(func)
        if title is None:
            title = self._learn(func)
        if not title:
            return None
        parents: Sequence[str] = self._recorder.parents
        direction = FORWARD
        in_api = self.forced is None and bool(parents) and parents[-1].endswith(FORWARD)
        if _graph_task() >= 0 and not in_api:  # an API inside a backward pass recomputes a forward
            direction = BACKWARD
            if self.replays and self.forced is None:
                return None
            parents = self.forced or self.origins.parents(_current_node())
        number = self._recorder.numbers.take(f"{title}.{direction}")
        return f"{title}.{number}.{direction}", direction, parents

    def _fail(self, name: str, call: Optional[int], error: BaseException) -> None:
        try:
            self._recorder.fail(call, error)
        except Exception:
            self._recorder.fault(name, traceback.format_exc())

    def _leave(self, func: Any, name: str, call: Optional[int], args: Any, output: Any) -> None:
        try:
            changed = self._mutable.get(func)
            if func in self._distrusted:
                self._texts.forget()
            elif changed:
                # The version counters change only after we return.
                self._texts.written(args[place] for place in changed if place < len(args))
            if call is not None:
                self._recorder.leave(call, name, output)
        except Exception:
            self._recorder.fault(name, traceback.format_exc())

    def _learn(self, func: Any) -> str:
        """Reads the facts about an operator once; its title is empty when it is not recorded."""
        packet, overload = func._schema.name.partition("::")[2], func._overloadname
        namespace = func.namespace
        is_view = getattr(func, "is_view", False) and not self.with_views
        runs_nothing = is_view or packet in _WITHOUT_KERNEL
        if namespace == "prim" or namespace == "profiler" or (namespace == "aten" and runs_nothing):
            title = ""
        else:
            title = f"Aten.{packet}.{overload}" if namespace == "aten" else f"Aten.{namespace}.{packet}.{overload}"
        written = [
            place
            for place, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        if (
            namespace != "aten"
            or packet.startswith("_fused")
            or any(func._schema.arguments[place].kwarg_only for place in written)
        ):
            if written or namespace != "aten":
                self._distrusted.add(func)
        elif written:
            self._mutable[func] = tuple(written)
        self._titles[func] = title
        return title


class ApiStack(Apis):
    """The mode that knows which API runs: it names calls as at L1 and records none."""

    def attach(self, kernels: Kernels, replay: Any, ascend: AscendDump) -> None:
        self._kernels = kernels
        kernels.with_views = self._table.switched_on
        self._replay = replay
        self._ascend = ascend

    def record(self, api: Api, func: Any, args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        title = f"{api.prefix}.{api.name}"
        name = enter_place(recorder, title)
        first = _sequence_number()
        try:
            with self._ascend.around(name):
                output = func(*args, **kwargs)
            if self._replay is not None:
                self._replay.after(name, recorder.parents, func, args, kwargs)
            return output
        finally:
            self._own_nodes(name, first, _sequence_number())
            leave_place(recorder, name)

    def _own_nodes(self, name: str, first: int, end: int) -> None:
        """The autograd nodes with these numbers belong to the call that ends."""
        try:
            if end > first:
                self._kernels.origins.add(first, end, tuple(map(backward_of, self._recorder.parents)))
        except Exception:
            self._recorder.fault(name, traceback.format_exc())

    def open_opaque(self, api: Api, args: Any) -> Any:
        """Compiled code runs without msprobe; the operators of a fused module are seen."""
        if api.prefix != "Compiled":
            return None
        self._kernels.remove()
        return api

    def close_opaque(self, record: Any, output: Any, breaks: Sequence[str] = ()) -> None:
        self._kernels.install()


class ModuleStack(ModulePlaces, Modules):
    """Module hooks that only say which module runs."""

    def attach(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def _watch_parameters(self, module: str, parameters: Any) -> None:
        """At this level the gradients of parameters are outputs of operators."""

    def take_off(self, is_apart: Callable[[Any], bool]) -> dict[int, tuple[Any, Any]]:
        """Compiled modules run without msprobe (`open_opaque`), so no operator has them as a parent."""
        hooks = super().take_off(is_apart)
        for module in self.hooked:
            if is_opaque(module) or is_compiled_in_place(module):
                hooks.pop(id(module), None)
        return hooks
