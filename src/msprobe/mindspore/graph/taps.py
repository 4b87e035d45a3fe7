"""Taps in compiled graphs: operators beside the computation that hand values to Python while a graph runs.

Hooks are compiled into a graph and Python in them vanishes; what stays is an operator. While a graph is being
compiled, and only then, each Cell below the models has another `construct` in the place of its own. It says that
the call begins, shows what goes in and what comes out, and lets both pass a gate whose gradient is shown too.

The operator that begins a call returns the call's number, and every other one takes it as an input: what belongs
to which call comes with the data, however often a Cell is called and in whatever order the graph runs. The
forward operators have a side effect, so that they run in the order of the program; those of the gradients have
none, so that a gradient that nothing needs is pruned as it would be without them.

What does not change between runs (arguments that are no tensors, types, names) is written down while compiling.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable
from typing import Any, Callable, Optional, Protocol

import mindspore
from mindspore import ops

from msprobe.collect import notices
from msprobe.mindspore.cells.cell_calls import Named
from msprobe.mindspore.graph.call_templates import CallTemplate, Describe, Sheets
from msprobe.mindspore.graph.graph_dump import graph_has_run

try:
    from mindspore.graph.api import _CellGraphExecutor, _JitExecutor
except ImportError:  # before MindSpore 2.9
    from mindspore.common.api import _CellGraphExecutor, _JitExecutor

_CONSTRUCT = "construct"


class Listener(Protocol):
    """The step that is being recorded. Called by the runtime, on its threads; nothing may be raised."""

    def enter(self, title: str) -> int:
        """A call begins. Returns its number, -1 where it is not to be shown."""

    def see(self, number: int, template: CallTemplate, slot: int, array: Any) -> None: ...

    def gradient(self, number: int, template: CallTemplate, slot: int, array: Any) -> None: ...


class TapBackend(Protocol):
    """How values come from a graph to Python on one device. `enter`, `seen` and `watched` are compiled."""

    enter: Any
    seen: Any
    watched: Any

    def title(self, title: str) -> Any: ...

    def place(self, template: CallTemplate, slot: int) -> Any: ...

    def parameter_hook(self, template: CallTemplate) -> Callable[[Any], Any]: ...

    def drain(self) -> None:
        """Called when graphs have run and before a step begins or ends: everything has been shown when it returns."""


class Taps:
    """The taps of this process: graphs live as long as it does, and so do the operators in them."""

    def __init__(self) -> None:
        self.listener: Optional[Listener] = None
        self.templates = Sheets()
        self.late = False
        self._way: Optional[TapBackend] = None
        self._constructs: dict[int, tuple[Any, Callable[..., Any]]] = {}
        self._hooked: dict[int, tuple[Any, Callable[[Any], Any], Any]] = {}  # parameter, hook, handle
        self._originals: list[tuple[Any, Any]] = []

    def attach(self, named: Iterable[Named], with_parameters: bool) -> None:
        """Every graph that is compiled from now on has taps for these Cells, until `release`.

        `with_parameters`: also for the gradients of their parameters, where the graph is the whole step.
        """
        new = [each for each in named if id(each.cell) not in self._constructs]
        self._watch_compiling()
        if not new:
            return
        self._way = self._way or _way_of_device(self)
        self.late = graph_has_run()
        for each in new:
            if _CONSTRUCT in vars(each.cell):
                notices.warn_once(f"{each.title} has a construct of its own: it is not collected in graph mode.")
                continue
            self._constructs[id(each.cell)] = (each.cell, _tapped(each, self._way, self.templates))
            if with_parameters:
                self._hook_parameters(each, self._way)

    def pause(self) -> None:
        """Graphs that are compiled before the next `attach` have no taps."""
        for executor, original in self._originals:
            executor.compile = original
        self._originals.clear()

    def drain(self) -> None:
        if self._way is None:
            return
        try:
            self._way.drain()
        except Exception as error:  # in start(), stop() and step(): the script goes on
            notices.warn_once(f"what compiled graphs showed could not be read: {_first_line(error)}.")

    def release(self) -> None:
        """Graphs that are compiled from now on have no taps; in the others they stay, and do nothing."""
        self.listener = None
        self._take_out()
        self._unhook()
        self.pause()
        self._constructs.clear()

    def _hook_parameters(self, named: Named, way: TapBackend) -> None:
        for name, parameter in named.cell._params.items():
            if parameter is not None and parameter.requires_grad and id(parameter) not in self._hooked:
                template = self.templates.of_parameter(named.title, name, parameter)
                if template.shown:
                    self._hook(parameter, way.parameter_hook(template))

    def _hook(self, parameter: Any, hook: Callable[[Any], Any]) -> None:
        self._hooked[id(parameter)] = (parameter, hook, parameter.register_hook(hook))

    # Compiling.

    def _watch_compiling(self) -> None:
        if not self._originals:
            for executor in (_CellGraphExecutor, _JitExecutor):
                self._originals.append((executor, executor.compile))
                executor.compile = self._compiling(executor.compile)

    def _compiling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_tapped(executor: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._constructs:
                return original(executor, *args, **kwargs)
            self._put_in()
            try:
                return original(executor, *args, **kwargs)
            except Exception as error:
                return self._compile_with_less(lambda: original(executor, *args, **kwargs), error)
            finally:
                self._take_out()

        return compile_tapped

    def _compile_with_less(self, compile_again: Callable[[], Any], error: Exception) -> Any:
        """MindSpore may fail over what is ours. What fails without it too is the script's own: ours stays, for the
        graphs that are compiled after it."""
        reason = _first_line(error)
        hooked = list(self._hooked.values())
        if hooked:
            self._unhook()
            try:
                result = compile_again()
            except Exception as second:
                reason = _first_line(second)
            else:
                notices.warn(
                    f"MindSpore cannot compile this model with hooks on its parameters ({reason}): their gradients are "
                    "not collected."
                )
                return result
        self._take_out()
        try:
            result = compile_again()
        except Exception:
            for parameter, hook, _ in hooked:
                self._hook(parameter, hook)
            raise
        self.release()
        notices.warn(
            f"MindSpore cannot compile this model with taps ({reason}): it runs without them, and nothing inside its "
            "graphs is collected."
        )
        return result

    def _put_in(self) -> None:
        for cell, construct in self._constructs.values():
            vars(cell)[_CONSTRUCT] = types.MethodType(construct, cell)

    def _take_out(self) -> None:
        for cell, _ in self._constructs.values():
            vars(cell).pop(_CONSTRUCT, None)

    def _unhook(self) -> None:
        for _, _, handle in self._hooked.values():
            handle.remove()
        self._hooked.clear()


TAPS = Taps()


def supported() -> bool:
    return mindspore.get_context("device_target") in ("CPU", "Ascend")


def _way_of_device(taps: Taps) -> TapBackend:
    if mindspore.get_context("device_target") == "Ascend":
        from msprobe.mindspore.graph.tensor_dump_taps import TensorDumpWay

        return TensorDumpWay(taps)
    from msprobe.mindspore.graph.pyfunc_taps import PyfuncWay

    return PyfuncWay(taps)


def _tapped(named: Named, way: TapBackend, templates: Sheets) -> Callable[..., Any]:
    """The construct that is compiled. MindSpore reads its source: no more Python than it knows."""
    cell = named.cell
    original = types.MethodType(inspect.unwrap(type(cell).construct), cell)
    names = tuple(n for n, p in cell._params.items() if p is not None and getattr(cell, n, None) is p)
    enter, title, seen, watched = way.enter, way.title(named.title), way.seen, way.watched
    inputs = Describe(templates, way.place, named.title, "input")
    outputs = Describe(templates, way.place, named.title, "output")
    weights = Describe(templates, way.place, named.title, "parameters", names)
    each, partial = ops.HyperMap(), ops.partial

    def construct(self: Any, *args: Any, **kwargs: Any) -> Any:
        number = ops.stop_gradient(enter(title))
        rebuilt, places = inputs((args, kwargs))
        if rebuilt:
            args, kwargs = each(partial(watched, number), (args, kwargs), places)
        else:
            number = ops.depend(number, each(partial(seen, number), (args, kwargs), places))
        result = original(*args, **kwargs)
        if len(names) > 0:
            values: Any = ()
            for name in names:
                values = (*values, getattr(self, name))
            number = ops.depend(number, each(partial(seen, number), values, weights(values)[1]))
        rebuilt, places = outputs((result,))
        if rebuilt:
            return each(partial(watched, number), (result,), places)[0]
        each(partial(seen, number), (result,), places)
        return result

    return construct


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]
