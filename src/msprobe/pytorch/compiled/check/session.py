"""Checks each compiled region while a script runs: its first call, and the first call with other shapes.

The script gets the result of its own compiled code, and the same random numbers as without the check. A call that may
be differentiated is checked after the script's backward pass, with its gradients.
"""

from __future__ import annotations

import copy
import re
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Callable

import torch
import torch.fx
from torch.utils._pytree import tree_leaves

from msprobe.collect import notices
from msprobe.dump.layout import make_directory
from msprobe.messages import Message
from msprobe.pytorch.compiled.check import graphs
from msprobe.pytorch.compiled.check.answer import OF_SCRIPT, RANDOM, CompiledCheck, Finding, RegionCheck
from msprobe.pytorch.compiled.check.kernels import Kernel, kernels_of, note_kernels
from msprobe.pytorch.compiled.check.locate import Located, Search
from msprobe.pytorch.compiled.check.measure import Call, Compiler, Measured, Runs, measure
from msprobe.pytorch.compiled.check.operators import explain
from msprobe.pytorch.compiled.check.reproducer import write_reproducer
from msprobe.pytorch.compiled.check.runs import Incoming, copy_inputs
from msprobe.pytorch.compiled.check.waiting_checks import CallContext, Gradients, WaitingChecks
from msprobe.pytorch.compiled.source import code_of, module_path, source_line
from msprobe.pytorch.compiled.switch import backend_of, is_usual, name_backend, name_region, with_backend
from msprobe.pytorch.features import eval_frame

SHAPES = 3  # a region with dynamic shapes is checked for this many shapes


class _Busy(threading.local):
    checking = False


class CheckSession:
    """Installed around the code that runs the compiled regions."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.answer = CompiledCheck()
        self.busy = _Busy()
        self.waiting = WaitingChecks()
        self._callbacks: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._names: dict[str, int] = {}
        self._original: Any = None

    def install(self) -> None:
        dynamo = eval_frame()
        self._original = dynamo._maybe_set_eval_frame
        dynamo._maybe_set_eval_frame = self._switch

    def remove(self) -> None:
        if self._original is not None:
            eval_frame()._maybe_set_eval_frame = self._original
            self._original = None
            self.waiting.run_ready(all=True)

    def __enter__(self) -> CheckSession:
        self.install()
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def _switch(self, callback: Any) -> Any:
        """Replaces dynamo's switch: code that is compiled from now on uses the same backend, and is recorded."""
        frame = sys._getframe(1)
        if callable(callback) and is_usual(callback) and "fn" in frame.f_locals and not self.busy.checking:
            callback = self._noting(callback, frame.f_locals["fn"])
        return self._original(callback)

    def _noting(self, callback: Any, function: Any) -> Any:
        owner = getattr(function, "__self__", function)
        key = (id(owner), id(callback))
        known = self._callbacks.get(key)
        if known is None:
            backend = backend_of(callback)
            noting = _NotingBackend(self, name_region(function), backend)
            known = self._callbacks[key] = (with_backend(callback, noting), (owner, callback))
        return known[0]

    def not_checked(self, name: str, backend: Any, graph: torch.fx.GraphModule, error: Exception) -> None:
        nodes = len(graphs.calls_of(graph))
        self.answer.regions.append(RegionCheck(name, name_backend(backend), nodes, error=_in_one_line(error)))

    def number(self, name: str) -> str:
        """A region with several graphs (after graph breaks, or recompiled) has a number for each."""
        self._names[name] = number = self._names.get(name, 0) + 1
        return name if number == 1 else f"{name} #{number}"


class _NotingBackend:
    """A backend that compiles with another backend and keeps the graph."""

    def __init__(self, session: CheckSession, region: str, backend: Any) -> None:
        self._session = session
        self._region = region
        self._backend = backend
        self.__name__ = name_backend(backend)

    def __call__(self, graph: torch.fx.GraphModule, example_inputs: Any, **options: Any) -> Callable[..., Any]:
        name = self._session.number(self._region)
        try:
            kept = copy.deepcopy(graph)
        except Exception as error:  # the script goes on without the check
            self._session.not_checked(name, self._backend, graph, error)
            compiled: Callable[..., Any] = self._backend(graph, example_inputs, **options)
            return compiled
        noted = _NotedGraph(self._session, name, self._backend, kept)
        with noted.watch():
            noted.compiled = self._backend(graph, example_inputs, **options)
        return noted


class _NotedGraph:
    """One captured graph: runs its compiled code, and checks it if its inputs have new shapes."""

    def __init__(self, session: CheckSession, name: str, backend: Any, graph: torch.fx.GraphModule) -> None:
        self.compiled: Callable[..., Any] = graph
        self._session = session
        self._name = name
        self._backend = backend
        self._graph = graph
        self._kernels: list[Kernel] = []
        self._dynamic = any(map(_is_symbolic, graph.graph.nodes))
        self._seen: dict[Any, Sequence[Any]] = {}

    def watch(self) -> Any:
        return note_kernels(self._kernels)

    def __call__(self, *args: Any) -> Any:
        session = self._session
        if session.busy.checking:
            return self.compiled(*args)
        session.waiting.run_ready()
        signature = tuple(tuple(arg.shape) if isinstance(arg, torch.Tensor) else repr(arg) for arg in args)
        if signature in self._seen or len(self._seen) >= SHAPES:
            return self.compiled(*args)
        try:
            inputs, before = copy_inputs(args), torch.get_rng_state()
        except Exception as error:  # the script goes on without the check
            self._seen[signature] = ()
            session.not_checked(self._name, self._backend, self._graph, error)
            return self.compiled(*args)
        with self.watch():
            result = self.compiled(*args)
        check = partial(self._check, self._new_region(inputs), self._new_call(signature, inputs, before), CallContext())
        gradients = Gradients([value for value in tree_leaves(result) if isinstance(value, torch.Tensor)], args)
        if gradients.expected:
            session.waiting.add(gradients, check)
        else:
            check(None)
        return result

    def _new_region(self, inputs: Sequence[Any]) -> RegionCheck:
        region = RegionCheck(self._name, name_backend(self._backend), len(graphs.calls_of(self._graph)))
        if self._seen:
            region.name += f" with shapes {_shapes(inputs)}"
        self._session.answer.regions.append(region)
        return region

    def _new_call(self, signature: Any, inputs: Sequence[Any], state: Any) -> Call:
        earlier = list(self._seen.values())[:1]
        self._seen[signature] = inputs if self._dynamic else ()
        return Call(inputs, state, earlier)

    def _check(self, region: RegionCheck, call: Call, context: CallContext, incoming: Incoming) -> None:
        random = _random_states()
        self._session.busy.checking = True
        try:
            with context.again():
                self._measure(region, replace(call, incoming=incoming))
        finally:
            self._session.busy.checking = False
            for put_back, state in random:
                put_back(state)

    def _measure(self, region: RegionCheck, call: Call) -> None:
        runs = Runs(region.nodes)
        try:
            with self.watch():
                measured = measure(self._graph, self.compiled, replace(call, earlier=()), runs)
            region.verdicts = measured.verdicts
            region.random = bool(measured.random)
            if any(name.startswith("gradient of") for name in measured.verdicts):
                region.gradients = RANDOM if call.incoming is None else OF_SCRIPT
            if measured.wrong:
                region.finding = self._find(measured, call, runs)
        except Exception as error:
            region.error = _in_one_line(error)
        region.runs = runs.count

    def _find(self, measured: Measured, call: Call, runs: Runs) -> Any:
        notices.inform(f"{self._name}: the compiled result is wrong; looking for the node.")
        compiler = Compiler(self._backend, self._dynamic)
        located = Search(self._graph, compiler, call, runs).find(measured)
        return None if located is None else self._describe(located)

    def _describe(self, located: Located) -> Finding:
        node = next(node for node in self._graph.graph.nodes if node.name == located.node)
        is_inductor = name_backend(self._backend) == "inductor"
        try:
            operators, why = explain(located, self._backend, is_inductor)
        except Exception as error:  # a part that cannot be traced again
            operators, why = [], Message("compiled.untraced", error=type(error).__name__)
        title = f"{self._name}: {code_of(node)} gives a wrong {'gradient' if located.backward else 'result'} compiled"
        make_directory(self._session.directory)
        name = re.sub(r"\W+", "_", f"{self._name}_{located.node}").strip("_")
        path = write_reproducer(located, self._session.directory, name, title, self._backend, self._dynamic)
        trace = (node.meta.get("stack_trace") or "").strip()
        kernels = [str(kernel) for kernel in kernels_of(self._kernels, located.node, trace)]
        return Finding(
            node=located.node,
            code=code_of(node),
            backward=located.backward,
            module=module_path(node),
            source=source_line(node),
            operators=tuple(operators),
            why=why,
            kernels=tuple(dict.fromkeys(kernels)),
            nodes=located.nodes,
            reproducer=str(path),
            verdict=located.verdict,
        )


def _random_states() -> list[tuple[Callable[[Any], None], Any]]:
    """The states of all generators, each with the function that puts it back."""
    states: list[tuple[Callable[[Any], None], Any]] = [(torch.set_rng_state, torch.get_rng_state())]
    for device in (torch.cuda, getattr(torch, "npu", None)):
        if device is not None and device.is_initialized():
            states.append((device.set_rng_state_all, device.get_rng_state_all()))
    return states


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _is_symbolic(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value")
    if node.op != "placeholder" or value is None:
        return False
    if isinstance(value, torch.SymInt):
        return True
    return isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape)


def _shapes(inputs: Sequence[Any]) -> str:
    shapes = [list(value.shape) for value in inputs if isinstance(value, torch.Tensor) and not _is_parameter(value)]
    return ", ".join(map(str, shapes[:4]))


def _is_parameter(value: Any) -> bool:
    return value.requires_grad and value.is_leaf
