"""The part of the autograd graph that one call made: from its outputs back to its inputs.

Before a call, the edges that lead to its inputs are noted. After it, the graph is walked from its outputs to those
edges. This module keeps and hooks nothing: `call_gradients` does that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import torch

from msprobe.collect.calls.tensor_search import TensorSearch
from msprobe.collect.gradients.backward_record import Exit

_AccumulateGrad = torch._C._functions.AccumulateGrad
_sequence = torch.autograd._get_sequence_nr
_CASTS = ("ToCopyBackward0", "_ToCopyBackward0")

_search = TensorSearch(torch.Tensor)
tensors_in = _search.in_value


def requires_grad(result: Any) -> bool:
    """Whether the result of a call requires a gradient."""
    tensors = (result,) if isinstance(result, torch.Tensor) else tensors_in(result, [])
    return any(tensor.requires_grad for tensor in tensors)


class InputEdges:
    """The edges that lead to the inputs of a call, taken before it: an in-place call changes them."""

    __slots__ = ("count", "edges", "leaves", "nodes", "sequence")

    def __init__(self, args: Any, kwargs: Any) -> None:
        self.edges: dict[tuple[int, int], list[int]] = {}
        self.leaves: dict[int, list[int]] = {}
        self.nodes: list[Any] = []
        self.sequence = _sequence()
        tensors = _search.in_call(args, kwargs)
        self.count = len(tensors)
        for position, tensor in enumerate(tensors):
            if tensor.requires_grad:
                node = tensor.grad_fn
                if node is None:
                    self.leaves.setdefault(id(tensor), []).append(position)
                else:
                    self.nodes.append(node)
                    self.edges.setdefault((id(node), tensor.output_nr), []).append(position)


def walk(entries: Iterable[Any], inputs: InputEdges) -> list[Exit]:
    """The edges from the part of the graph of the call to its inputs."""
    edges, leaves, first = inputs.edges, inputs.leaves, inputs.sequence
    keeps_casts = torch._C._is_any_autocast_enabled()
    exits: list[Exit] = []
    seen = set(entries)
    queue = list(entries)
    while queue:
        node = queue.pop()
        for slot, (below, number) in enumerate(node.next_functions):
            if below is None:
                continue
            if type(below) is _AccumulateGrad:
                positions = leaves.get(id(below.variable)) if leaves else None
                if positions is not None:
                    exits.append((node, slot, positions))
                continue
            positions = edges.get((id(below), number)) if edges else None
            if positions is not None:
                exits.append((node, slot, positions))
            elif below not in seen:
                if below._sequence_nr() >= first and not (keeps_casts and _is_kept_cast(below)):
                    seen.add(below)
                    queue.append(below)
                else:
                    positions = _through_cast(below, inputs)
                    if positions is not None:
                        exits.append((node, slot, positions))
    return exits


def _is_kept_cast(node: Any) -> bool:
    """Whether autocast may pass this cast of a weight to later calls: what reaches it is then also their gradient."""
    return node.name() in _CASTS and isinstance(node.next_functions[0][0], _AccumulateGrad)


def _through_cast(node: Any, inputs: InputEdges) -> Optional[list[int]]:
    """Autocast caches the cast of a weight for the next call: an older node, but it leads to an input of this call."""
    if node.name() not in _CASTS:
        return None
    below, number = node.next_functions[0]
    if isinstance(below, _AccumulateGrad):
        return inputs.leaves.get(id(below.variable))
    return inputs.edges.get((id(below), number))
