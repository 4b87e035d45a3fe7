"""FSDP1's flat parameters (FullyShardedDataParallel): the original parameters in them, complete and this rank's parts.

While a module runs, its parameters are complete. With use_orig_params=False they are then plain attributes, and the
flat parameter is the only registered one; records show the original parameters in both settings.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional

FLAT = "_flat_param"
_MODULE = "torch.distributed.fsdp.fully_sharded_data_parallel"


def handles(modules: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """(wrapper, handle) of each FullyShardedDataParallel among the modules that has parameters."""
    kind: Any = getattr(sys.modules.get(_MODULE), "FullyShardedDataParallel", ())
    for module in modules if kind else ():
        if isinstance(module, kind):
            handle = getattr(module, "_handle", None)
            if handle is not None:
                yield module, handle


def hidden_parameters(modules: Iterable[Any]) -> dict[int, tuple[str, ...]]:
    """By the id of the module: the names of its parameters that are only in a flat parameter. A module that has the
    flat parameter is in it too."""
    found: dict[int, list[str]] = {}
    for wrapper, handle in handles(modules):
        if not handle._use_orig_params:
            found.setdefault(id(wrapper._fsdp_wrapped_module), [])
            for name, module, *_ in (*handle.flat_param._param_infos, *handle.flat_param._shared_param_infos):
                found.setdefault(id(module), []).append(name)
    return {module: tuple(names) for module, names in found.items()}


class FlatPart:
    """This rank's elements of one parameter in a flat parameter."""

    def __init__(self, flat: Any, first: int, count: int) -> None:
        self._flat = flat
        self._first = first
        self._count = count

    @property
    def grad(self) -> Optional[Any]:
        """None until the gradient has been reduced: before, it is one of the complete flat parameter."""
        grad = self._flat.grad
        if grad is None or grad.numel() != self._flat._local_shard.numel():
            return None
        return grad[self._first : self._first + self._count]


def parts_by_module(titled: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, dict[str, FlatPart]]]:
    """The title of a module, and the parts of its parameters that are only in a flat parameter."""
    titles = {id(module): title for title, module in titled}
    for _, handle in handles(module for _, module in titled):
        if handle._use_orig_params:
            continue
        flat, parts = handle.flat_param, {}
        for (name, module, _), info in zip(flat._param_infos, flat._shard_param_infos):
            if info.in_shard:
                parts[id(module), name] = FlatPart(flat, int(info.offset_in_shard), int(info.numel_in_shard))
        for name, module, _, first_name, first_module, _ in flat._shared_param_infos:
            if (id(first_module), first_name) in parts:
                parts[id(module), name] = parts[id(first_module), first_name]
        for (owner, name), part in parts.items():
            if owner in titles:
                yield titles[owner], {name: part}
