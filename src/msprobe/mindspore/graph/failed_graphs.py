"""Keeps the inputs of each graph that raises, for op_debug_mode 4 of a Graph-mode Dump."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable

import mindspore

from msprobe.collect import notices
from msprobe.graphdump.dumping.raised import prepare_place, write_raised
from msprobe.mindspore.features import graph_api
from msprobe.system.interrupts import let_through

_Run = Callable[..., Any]


def watch_graphs(staging: Path) -> None:
    """From now on, a graph that raises leaves its inputs in this staging directory."""
    cells, functions = graph_api._CellGraphExecutor, graph_api._JitExecutor
    if not hasattr(cells, "_exec_pip"):
        return
    place = prepare_place(staging)
    cells._exec_pip = _watched(cells._exec_pip, place, lambda executor, cell, *args: (cell.construct, args))
    functions.__call__ = _watched(functions.__call__, place, lambda executor, *args: (executor.fn, args))


def _watched(run: _Run, place: Path, find_call: Callable[..., tuple[_Run, tuple[Any, ...]]]) -> _Run:
    @functools.wraps(run)
    def watched(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except Exception as error:
            try:
                function, given = find_call(*args)
                write_raised(place, str(error), _arrays(function, given, kwargs))
            except Exception as failure:
                let_through(failure)
                notices.warn_once(f"the inputs of a graph that raised cannot be saved: {failure!r}")
            raise

    return watched


def _arrays(function: _Run, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The tensors among the arguments, by the names that MindSpore gives them in the graph."""
    signature = inspect.signature(function)
    known = {name: value for name, value in kwargs.items() if name in signature.parameters}
    for name, value in signature.bind(*args, **known).arguments.items():
        several = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        for title, one in ((f"{name}{place}", one) for place, one in enumerate(value)) if several else ((name, value),):
            if isinstance(one, mindspore.Tensor):
                yield title, one.asnumpy()
