"""Runs a captured graph on copies of its inputs: outputs, gradients, and the inputs that it changed."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import torch
import torch.fx
from torch.utils import _pytree as pytree

_SEED = 20260
_NARROW = (torch.float16, torch.bfloat16, torch.float32)
_METHODS = frozenset(("float", "half", "bfloat16"))


def copy_inputs(inputs: Sequence[Any], wide: bool = False) -> list[Any]:
    """The inputs of one run, with the same strides; `wide`: in fp64."""
    return [_copy(value, wide) if isinstance(value, torch.Tensor) else value for value in inputs]


def _copy(value: Any, wide: bool) -> Any:
    plain = value.detach()
    if wide and plain.dtype in _NARROW:
        copied = plain.double()
    elif wide and plain.dtype == torch.complex64:
        copied = plain.to(torch.complex128)
    else:
        copied = torch._prims_common.clone_preserve_strides(plain) if plain.layout == torch.strided else plain.clone()
    return copied.requires_grad_(value.requires_grad)


Incoming = Optional[Sequence[Optional[torch.Tensor]]]
"""The gradient of each tensor that a graph returns; None for one that was not differentiated. Without any of them, the
incoming gradients are random numbers, the same in each run."""


def run(
    call: Callable[..., Any],
    names: Sequence[str],
    inputs: Sequence[Any],
    state: Any,
    backward: bool = True,
    incoming: Incoming = None,
) -> dict[str, torch.Tensor]:
    """Calls `call(*inputs)` (inputs of this run only) and differentiates it if possible.

    The values have names: `output 0`, `gradient of x`, `x after the call`.
    """
    before = [value.detach().clone() if isinstance(value, torch.Tensor) else None for value in inputs]
    torch.set_rng_state(state)
    outputs = [value for value in pytree.tree_leaves(call(*inputs)) if isinstance(value, torch.Tensor)]
    values = {f"output {place}": value for place, value in enumerate(outputs)}
    for name, value, was in zip(names, inputs, before):
        if was is not None and _was_written(value, was):
            values[f"{name} after the call"] = value.detach().clone()
    if backward:
        values.update(_gradients(outputs, names, inputs, incoming))
    return {name: value.detach() for name, value in values.items()}


def _was_written(value: Any, was: Any) -> bool:
    return not bool(torch.equal(value.detach(), was)) and not bool(was.isnan().any())


def _gradients(
    outputs: Sequence[Any], names: Sequence[str], inputs: Sequence[Any], incoming: Incoming
) -> dict[str, Any]:
    leaves = [(name, value) for name, value in zip(names, inputs) if isinstance(value, torch.Tensor)]
    leaves = [(name, value) for name, value in leaves if value.requires_grad and value.is_leaf]
    ends = [(value, place) for place, value in enumerate(outputs) if value.requires_grad and value.grad_fn is not None]
    if incoming is None:
        generator = torch.Generator().manual_seed(_SEED)
        starts = [
            (end, torch.randn(end.shape, generator=generator, dtype=torch.float32).to(end.device)) for end, _ in ends
        ]
    else:
        given = [(end, incoming[place]) for end, place in ends if place < len(incoming)]
        starts = [(end, grad) for end, grad in given if grad is not None and grad.shape == end.shape]
    if not leaves or not starts:
        return {}
    found = torch.autograd.grad(
        [end for end, _ in starts],
        [value for _, value in leaves],
        [grad.to(end.dtype) for end, grad in starts],
        allow_unused=True,
    )
    return {f"gradient of {name}": grad for (name, _), grad in zip(leaves, found) if grad is not None}


def widen(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph for fp64: no node uses a narrower dtype."""
    wide = torch.fx.GraphModule(graph, _copy_graph(graph))
    for node in wide.graph.nodes:
        node.args, node.kwargs = _widen_types(node.args), _widen_types(node.kwargs)
        if node.op == "call_method" and node.target in _METHODS:
            node.target = "double"
    for name, value in list(graph.named_buffers(recurse=False)) + list(graph.named_parameters(recurse=False)):
        if value.dtype in _NARROW:
            setattr(wide, name, torch.nn.Buffer(value.detach().double()))
    wide.recompile()
    return wide


def _copy_graph(graph: torch.fx.GraphModule) -> torch.fx.Graph:
    copied = torch.fx.Graph()
    result = copied.graph_copy(graph.graph, {}, return_output_node=True)
    if result is not None:
        copied.output(result[0])
    return copied


def _widen_types(value: Any) -> Any:
    return torch.fx.node.map_aggregate(
        value, lambda leaf: torch.float64 if isinstance(leaf, torch.dtype) and leaf in _NARROW else leaf
    )


class Eager(torch.fx.Interpreter):
    """Runs a graph unchanged and records which nodes draw random numbers. `values`: the results by node, if wanted."""

    def __init__(self, graph: torch.fx.GraphModule, values: Optional[dict[str, Any]] = None) -> None:
        super().__init__(graph, garbage_collect_values=values is None)
        self.random: dict[str, tuple[Any, Any]] = {}
        self._values = values

    def run_node(self, n: torch.fx.Node) -> Any:
        before = torch.get_rng_state() if n.op in ("call_function", "call_method") else None
        result = super().run_node(n)
        if before is not None and not torch.equal(before, torch.get_rng_state()):
            types = [value.dtype if isinstance(value, torch.Tensor) else None for value in self._inputs_of(n)]
            self.random[n.name] = (types, None)
        if self._values is not None and n.op not in ("output", "placeholder"):
            self._values[n.name] = result
        return result

    def _inputs_of(self, node: torch.fx.Node) -> list[Any]:
        return pytree.tree_leaves(self.fetch_args_kwargs_from_env(node))


class Reference(torch.fx.Interpreter):
    """Runs a widened graph. A node that draws random numbers keeps its dtype: in fp64 it would draw others."""

    def __init__(
        self, graph: torch.fx.GraphModule, random: dict[str, tuple[Any, Any]], values: Optional[dict[str, Any]] = None
    ) -> None:
        super().__init__(graph, garbage_collect_values=values is None)
        self._random = random
        self._values = values

    def run_node(self, n: torch.fx.Node) -> Any:
        result = pytree.tree_map(_widened, self._draw(n) if n.name in self._random else super().run_node(n))
        if self._values is not None and n.op not in ("output", "placeholder"):
            self._values[n.name] = result
        return result

    def _draw(self, node: torch.fx.Node) -> Any:
        leaves, shape = pytree.tree_flatten(self.fetch_args_kwargs_from_env(node))
        types = self._random[node.name][0]
        narrow = [
            leaf.to(kind) if kind is not None and leaf.is_floating_point() else leaf
            for leaf, kind in zip(leaves, types)
        ]
        args, kwargs = pytree.tree_unflatten(narrow, shape)
        return getattr(self, node.op)(node.target, args, kwargs)

    def run_wide(self, *inputs: Any) -> Any:
        with default_dtype(torch.float64):
            return self.run(*inputs)


def _widened(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in _NARROW else value


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Tensors that the graph creates without a dtype are fp64 too."""
    old = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(old)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """A graph that runs several times would repeat the warnings of the script."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
