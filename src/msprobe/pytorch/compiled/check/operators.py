"""The operators below one node, and the decomposition or lowering that is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
import torch.fx

from msprobe.messages import Message
from msprobe.pytorch.compiled.check import graphs
from msprobe.pytorch.compiled.check.judge import judge
from msprobe.pytorch.compiled.check.locate import Located
from msprobe.pytorch.compiled.check.runs import (
    Reference,
    copy_inputs,
    run,
    widen,
    without_warnings,
)


def explain(located: Located, backend: Any, is_inductor: bool) -> tuple[list[str], str]:
    """The operators below a wrong part, and a sentence about the wrong one ("" if it is not known)."""
    plain = _trace(located, {})
    operators = list(dict.fromkeys(str(node.target) for traced in plain for node in _calls(traced.graph)))
    if not is_inductor:
        return operators, ""
    from torch._inductor.decomposition import select_decomp_table

    table = select_decomp_table()
    for traced in plain:
        wrong = _wrong_decomposition(traced, table)
        if wrong is not None:
            return operators, Message("compiled.decomposition", operator=str(wrong), place=_place(table[wrong]))
    for traced in _trace(located, table):
        wrong = _wrong_lowering(traced, backend)
        if wrong is not None:
            return operators, _name_lowering(wrong)
    return operators, ""


class _Traced:
    """A graph of aten operators, forward or backward, and its inputs."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self.graph = graph
        self.inputs: list[Any] = []


def _trace(located: Located, decompositions: Any) -> list[_Traced]:
    """The aten graphs of a part: the forward, and the backward if that is wrong."""
    from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func

    graphs_seen: list[_Traced] = []

    def keep(graph: torch.fx.GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
        traced = _Traced(graph)
        graphs_seen.append(traced)

        def call(*inputs: Any) -> Any:
            traced.inputs = [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in inputs]
            return graph(*inputs)

        return make_boxed_func(call)

    inputs = copy_inputs(located.call.inputs)
    with without_warnings():
        compiled = aot_module_simplified(
            located.graph, inputs, fw_compiler=keep, bw_compiler=keep, decompositions=decompositions
        )
        names, call = graphs.input_names(located.graph), located.call
        run(compiled, names, copy_inputs(call.inputs), call.state, incoming=call.incoming)
    used = [traced for traced in graphs_seen if traced.inputs]
    return used[::-1] if located.backward else used


def _calls(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in graph.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]


def _wrong_decomposition(traced: _Traced, table: Any) -> Any:
    """The operator whose decomposition gives a different result than the operator itself."""
    found: list[Any] = []

    class Decompose(torch.fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            result = super().call_function(target, args, kwargs)
            if target in table and not found and not _is_random(target):
                try:
                    other = table[target](*args, **kwargs)
                except Exception:  # a decomposition that works only while a graph is traced
                    return result
                wide = super().call_function(target, _double(args), _double(kwargs))
                if other is not NotImplemented and _differs(other, result, wide):
                    found.append(target)
            return result

    with torch.no_grad(), without_warnings():
        try:
            Decompose(traced.graph).run(*copy_inputs(traced.inputs))
        except Exception:  # an operator that has no fp64
            return None
    return found[0] if found else None


def _differs(other: Any, result: Any, wide: Any) -> bool:
    others, results, wides = ([v] if isinstance(v, torch.Tensor) else list(v) for v in (other, result, wide))
    return any(
        judge("", a, b.to(a.dtype), w).wrong
        for a, b, w in zip(others, results, wides)
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape
    )


def _wrong_lowering(traced: _Traced, backend: Any) -> Optional[Any]:
    """The first operator whose compiled value is wrong when every value of the graph is an output."""
    values: dict[str, Any] = {}

    class Keep(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            result = values[n.name] = super().run_node(n)
            return result

    with torch.no_grad(), without_warnings():
        Keep(traced.graph).run(*copy_inputs(traced.inputs))
        nodes = [node for node in _calls(traced.graph) if isinstance(values.get(node.name), torch.Tensor)]
        names = [node.name for node in nodes]
        wide: dict[str, Any] = {}
        try:
            Reference(widen(traced.graph), {}, wide).run_wide(*copy_inputs(traced.inputs, wide=True))
            views = [node.name for node in nodes if getattr(node.target, "is_view", False)]
            compiled = torch.compile(graphs.with_values(traced.graph, names, views), backend=backend, dynamic=False)
            _, found = compiled(*copy_inputs(traced.inputs))
        except Exception:  # an operator without fp64, or one that the backend accepts only inside its own graph
            return None
    for node, value in zip(nodes, found):
        if isinstance(wide.get(node.name), torch.Tensor) and (
            judge(node.name, value, values[node.name], wide[node.name]).wrong
        ):
            return node.target
    return nodes[0].target if len(nodes) == 1 else None  # wrong only with other shapes: there is no other operator


def _name_lowering(operator: Any) -> Message:
    from torch._inductor.lowering import lowerings

    lowering = lowerings.get(operator, lowerings.get(operator.overloadpacket))
    if lowering is None:
        return Message("compiled.generated", operator=str(operator))
    return Message("compiled.lowering", operator=str(operator), place=_place(lowering))


def _place(function: Any) -> str:
    """A function and where it is defined."""
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    name = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', type(inner).__name__)}"
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def _is_random(operator: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in operator.tags


def _double(value: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda leaf: leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf, value
    )
