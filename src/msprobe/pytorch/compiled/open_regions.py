"""Open regions (`"compile": "open"`): the graph that the compiler captured runs node by node, under the API mode.

The mode sees each node as it sees the call of eager code, so records have the names of an eager run. The modules around
a node and its source line come from the graph's metadata. The numbers are those of the graph, not of fused kernels.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Callable, Optional, Protocol

import torch
import torch.fx

from msprobe.collect.records.recorder import Recorder
from msprobe.collect.records.stacks import Position, positions_of
from msprobe.dump.names import FORWARD
from msprobe.pytorch.compiled.source import positions
from msprobe.pytorch.compiled.switch import with_backend


class Modules(Protocol):
    """The names of the modules of a step."""

    def name_of(self, module: int) -> Optional[str]: ...


class OpenScope:
    """The current step: open graphs record into it. There is one at a time, because there is one debugger."""

    current: Optional[OpenScope] = None

    def __init__(self, recorder: Recorder, modules: Optional[Modules]) -> None:
        self.recorder = recorder
        self._modules = modules

    def title(self, module: str) -> Optional[str]:
        """The name of a module from its key in the graph, which begins with its id."""
        number = module.partition("@")[0]
        return self._modules.name_of(int(number)) if self._modules is not None and number.isdigit() else None


class _OpenGraph:
    """A captured graph, as compiled code: records its nodes while a step is collected."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self._graph = graph
        self._places = {
            node: (tuple((node.meta.get("nn_module_stack") or {}).keys()), _positions(node))
            for node in graph.graph.nodes
        }

    def __call__(self, *args: Any) -> Any:
        scope = OpenScope.current
        if scope is None or scope.recorder.closed:
            return self._graph(*args)
        run = _NodeByNode(self._graph, scope, self._places, _outer_positions(sys._getframe(1)))
        try:
            return run.run(*args)
        finally:
            run.leave()


class _NodeByNode(torch.fx.Interpreter):
    def __init__(
        self,
        graph: torch.fx.GraphModule,
        scope: OpenScope,
        places: dict[torch.fx.Node, tuple[tuple[str, ...], tuple[Position, ...]]],
        outer: tuple[Position, ...],
    ) -> None:
        super().__init__(graph)
        self.extra_traceback = False  # an exception of the script stays as it is
        self._scope = scope
        self._places = places
        self._outer = outer
        self._recorder = scope.recorder
        self._around = {name.rpartition(f".{FORWARD}.")[0] for name in scope.recorder.parents}
        self._open: list[tuple[str, Optional[str]]] = []  # the key of a module, and the name of its call

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op in ("placeholder", "output", "get_attr"):
            return super().run_node(n)
        modules, lines = self._places[n]
        self._enter(modules)
        self._recorder.set_source((*lines, *self._outer) if lines else None)
        return super().run_node(n)

    def leave(self) -> None:
        self._enter(())
        self._recorder.set_source(None)

    def _enter(self, modules: tuple[str, ...]) -> None:
        """Leaves the modules that the node is not in, and enters those that it is in."""
        kept = 0
        while kept < min(len(modules), len(self._open)) and self._open[kept][0] == modules[kept]:
            kept += 1
        while len(self._open) > kept:
            name = self._open.pop()[1]
            if name is not None:
                self._recorder.pop(name)
        for key in modules[kept:]:
            self._open.append((key, self._begin(key)))

    def _begin(self, key: str) -> Optional[str]:
        title = self._scope.title(key)
        if title is None or title in self._around:  # its own hooks record the module of the region
            return None
        recorder = self._recorder
        name = f"{title}.{FORWARD}.{recorder.numbers.take(title)}"
        recorder.writer.place(name, recorder.parent)
        recorder.push(name)
        return name


def _positions(node: torch.fx.Node) -> tuple[Position, ...]:
    return tuple((file, line, function) for file, line, function, _ in positions(node))


def _outer_positions(frame: Optional[FrameType]) -> tuple[Position, ...]:
    """The frames of the script outside of the region."""
    inner = True
    while frame is not None and inner:
        inner = frame.f_code.co_name != "compile_wrapper"
        frame = frame.f_back
    return positions_of(frame) if frame is not None else ()


def _open_graph(graph: torch.fx.GraphModule, example_inputs: Any, **options: Any) -> Callable[..., Any]:
    """The backend of open regions."""
    return _OpenGraph(graph)


_callbacks: dict[int, tuple[Any, Any]] = {}


def opened(callback: Any) -> Any:
    """The callback of a compiled function, with the backend of open regions."""
    known = _callbacks.get(id(callback))
    if known is None:
        known = _callbacks[id(callback)] = (with_backend(callback, _open_graph), callback)
    return known[0]
