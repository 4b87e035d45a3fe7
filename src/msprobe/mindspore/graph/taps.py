"""Taps in compiled graphs: operators that pass values to Python while a graph runs.

MindSpore compiles hooks, and their Python code is lost; operators remain. So while a graph is compiled, and only then,
each Cell below the models has another `construct`. It announces the call, passes its inputs and outputs to Python,
and sends both through a gate that also passes on their gradients.

The operator that begins a call returns the number of the call, and all others take it as an input. So each value
arrives with its call, no matter how often a Cell is called and in which order the graph runs. The forward operators
have a side effect, so that they run in program order. The gradient operators have none, so that MindSpore still
removes unused gradients.

Everything that is the same in each run (arguments that are not tensors, types, names) is recorded at compile time.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable
from typing import Any, Callable, Optional, Protocol

import mindspore
from mindspore import ops

from msprobe.collect import notices
from msprobe.mindspore.cells.cell_calls import NamedCell
from msprobe.mindspore.features import graph_api
from msprobe.mindspore.graph.call_templates import CallTemplate, CallTemplates, Describe
from msprobe.mindspore.graph.graph_dump import graph_has_run

_CellGraphExecutor, _JitExecutor = graph_api._CellGraphExecutor, graph_api._JitExecutor
_CONSTRUCT = "construct"


class Listener(Protocol):
    """The step that is being recorded. The MindSpore runtime calls it on its threads; it must not raise."""

    def enter(self, title: str) -> int:
        """A call begins. Returns its number, or -1 if its values are not wanted."""

    def see(self, number: int, template: CallTemplate, slot: int, array: Any) -> None: ...

    def gradient(self, number: int, template: CallTemplate, slot: int, array: Any) -> None: ...


class TapBackend(Protocol):
    """Passes values from a graph to Python on one device. `enter`, `seen` and `watched` are compiled."""

    enter: Any
    seen: Any
    watched: Any

    def title(self, title: str) -> Any: ...

    def place(self, template: CallTemplate, slot: int) -> Any: ...

    def parameter_hook(self, template: CallTemplate) -> Callable[[Any], Any]: ...

    def drain(self) -> None:
        """Called after graphs have run and before a step begins or ends. Returns when all values were passed on."""


class Taps:
    """The taps of this process. Compiled graphs and the operators in them stay until the process ends."""

    def __init__(self) -> None:
        self.listener: Optional[Listener] = None
        self.templates = CallTemplates()
        self.late = False
        self._backend: Optional[TapBackend] = None
        self._constructs: dict[int, tuple[Any, Callable[..., Any]]] = {}
        self._hooked: dict[int, tuple[Any, Callable[[Any], Any], Any]] = {}  # parameter, hook, handle
        self._originals: list[tuple[Any, Any]] = []

    def attach(self, named: Iterable[NamedCell], with_parameters: bool) -> None:
        """Adds taps for these Cells to every graph that is compiled from now on, until `release`.

        `with_parameters`: also for the gradients of their parameters; used if the graph is the complete step.
        """
        new = [each for each in named if id(each.cell) not in self._constructs]
        self._watch_compiling()
        if not new:
            return
        self._backend = self._backend or _choose_backend(self)
        self.late = graph_has_run()
        for each in new:
            if _CONSTRUCT in vars(each.cell):
                notices.warn_once(f"{each.title} has its own construct on the instance: not collected in graph mode.")
                continue
            self._constructs[id(each.cell)] = (each.cell, _make_tapped_construct(each, self._backend, self.templates))
            if with_parameters:
                self._hook_parameters(each, self._backend)

    def pause(self) -> None:
        """Compiles graphs without taps until the next `attach`."""
        for executor, original in self._originals:
            executor.compile = original
        self._originals.clear()

    def drain(self) -> None:
        if self._backend is None:
            return
        try:
            self._backend.drain()
        except Exception as error:  # called from start(), stop() and step(): the script must continue
            notices.warn_once(f"cannot read the values from compiled graphs: {_first_line(error)}.")

    def release(self) -> None:
        """Compiles graphs without taps from now on. Taps in existing graphs stay and do nothing."""
        self.listener = None
        self._uninstall()
        self._unhook()
        self.pause()
        self._constructs.clear()

    def _hook_parameters(self, named: NamedCell, backend: TapBackend) -> None:
        for name, parameter in named.cell._params.items():
            if parameter is not None and parameter.requires_grad and id(parameter) not in self._hooked:
                template = self.templates.of_parameter(named.title, name, parameter)
                if template.shown:
                    self._hook(parameter, backend.parameter_hook(template))

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
            self._install()
            try:
                return original(executor, *args, **kwargs)
            except Exception as error:
                return self._compile_with_less(lambda: original(executor, *args, **kwargs), error)
            finally:
                self._uninstall()

        return compile_tapped

    def _compile_with_less(self, compile_again: Callable[[], Any], error: Exception) -> Any:
        """Tries again without hooks on parameters, then without taps: MindSpore may fail because of them. If it fails
        without them too, the error is the script's own, and later graphs still get taps."""
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
                    f"MindSpore cannot compile this model with hooks on its parameters ({reason}): msprobe does not "
                    "collect their gradients."
                )
                return result
        self._uninstall()
        try:
            result = compile_again()
        except Exception:
            for parameter, hook, _ in hooked:
                self._hook(parameter, hook)
            raise
        self.release()
        notices.warn(
            f"MindSpore cannot compile this model with taps ({reason}): it runs without them, and msprobe collects "
            "nothing inside its graphs."
        )
        return result

    def _install(self) -> None:
        for cell, construct in self._constructs.values():
            vars(cell)[_CONSTRUCT] = types.MethodType(construct, cell)

    def _uninstall(self) -> None:
        for cell, _ in self._constructs.values():
            vars(cell).pop(_CONSTRUCT, None)

    def _unhook(self) -> None:
        for _, _, handle in self._hooked.values():
            handle.remove()
        self._hooked.clear()


TAPS = Taps()


def supported() -> bool:
    return mindspore.get_context("device_target") in ("CPU", "Ascend")


def _choose_backend(taps: Taps) -> TapBackend:
    if mindspore.get_context("device_target") == "Ascend":
        from msprobe.mindspore.graph.tensor_dump_taps import TensorDumpBackend

        return TensorDumpBackend(taps)
    from msprobe.mindspore.graph.pyfunc_taps import PyfuncBackend

    return PyfuncBackend(taps)


def _make_tapped_construct(named: NamedCell, backend: TapBackend, templates: CallTemplates) -> Callable[..., Any]:
    """The construct to compile. MindSpore parses its source, so it uses only Python that MindSpore supports."""
    cell = named.cell
    original = types.MethodType(inspect.unwrap(type(cell).construct), cell)
    names = tuple(n for n, p in cell._params.items() if p is not None and getattr(cell, n, None) is p)
    enter, title, seen, watched = backend.enter, backend.title(named.title), backend.seen, backend.watched
    inputs = Describe(templates, backend.place, named.title, "input")
    outputs = Describe(templates, backend.place, named.title, "output")
    weights = Describe(templates, backend.place, named.title, "parameters", names)
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
