"""Finds arguments that are not inputs of a call: what it only writes, and memory that no call has written yet.

The target of `copy_`, an `out=`, the receive buffer of a collective: their old content has no influence on anything,
and differs between two runs of the same program. The record marks them `"destination": true`.

Memory from `torch.empty` is followed until it is written. If a call gets some of it before that, the argument is marked
`"uninitialised": true`. Storages are held weakly; no tensor is kept.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from msprobe.collect.records.values import MarkedValue
from msprobe.frameworks.pytorch.api_table import Api
from msprobe.pytorch.gradients.backward_graph import tensors_in
from msprobe.pytorch.tensors import nonplain_tensors

MAKERS: frozenset[Any] = frozenset(
    made
    for made in (
        *(getattr(torch, name, None) for name in ("empty", "empty_like", "empty_strided", "empty_permuted")),
        *(getattr(torch.Tensor, name, None) for name in ("new_empty", "new_empty_strided")),
    )
    if made is not None
)
"""Functions that return uninitialised memory."""

DESTINATION = '"destination": true'
UNINITIALISED = '"uninitialised": true'
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_FOLLOWED = 1 << 24
"""For larger memory, and on an accelerator, msprobe knows only how much was written, not where."""

_FILLS = """
copy_ fill_ zero_ normal_ uniform_ random_ exponential_ geometric_ cauchy_ log_normal_ bernoulli_
_foreach_copy_ _foreach_zero_
"""
_RECEIVES = """
all_gather all_gather_into_tensor _all_gather_base all_to_all all_to_all_single reduce_scatter reduce_scatter_tensor
_reduce_scatter_base recv irecv scatter broadcast
"""
_FILLING = frozenset(_FILLS.split())
_RECEIVING = frozenset(_RECEIVES.split())
_AT: dict[str, tuple[int, str]] = {
    "Distributed.gather": (1, "gather_list"),
    "Ops.fsdp.all_gather_copy_in": (1, "all_gather_output"),
    "Ops.fsdp.copy_": (0, "tensor"),
}
MARKED = _FILLING | _RECEIVING | {"__setitem__", *(title.partition(".")[2] for title in _AT)}
"""The names of the APIs that may have a destination, apart from `out=`."""
_RECEIVED = ("tensor", "tensor_list", "output_tensor", "output", "output_tensor_list")
_EVERYTHING = (slice(None), Ellipsis)


def _at_index(part: Any, index: Any, *_: Any) -> None:
    part[index] = True


def _along(part: Any, dim: int, index: Any, *_: Any) -> None:
    part.index_fill_(dim, index, True)


def _scattered(part: Any, dim: int, index: Any, *_: Any) -> None:
    part.scatter_(dim, index, True)


def _put(part: Any, indices: Any, *_: Any) -> None:
    part.index_put_(tuple(indices), torch.tensor(True))


def _masked(part: Any, mask: Any, *_: Any) -> None:
    part.masked_fill_(mask, True)


_PARTIAL: dict[str, Callable[..., None]] = {
    "__setitem__": _at_index,
    "index_copy_": _along,
    "index_fill_": _along,
    "scatter_": _scattered,
    "index_put_": _put,
    "masked_fill_": _masked,
    "masked_scatter_": _masked,
}
"""Calls that write a part of their first argument, with functions that mark this part in a map of written elements."""


class _Memory:
    """Memory that was allocated and not written: all of it, or the elements that its map says."""

    __slots__ = ("count", "itemsize", "map", "storage", "total")

    def __init__(self, tensor: Any, storage: Any) -> None:
        self.storage = StorageWeakRef(storage)
        self.itemsize = tensor.element_size()
        self.total = storage.nbytes() // self.itemsize
        self.count = 0
        self.map: Any = None

    def part(self, tensor: Any) -> Any:
        """The map of one tensor in this memory."""
        if self.map is None:
            self.map = torch.zeros(self.total, dtype=torch.bool)
        return self.map.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


class Destinations:
    """The destinations of one step."""

    def __init__(self) -> None:
        self.unwritten: dict[int, _Memory] = {}
        self._purge_at = 64

    def add_unwritten(self, tensor: Any) -> None:
        """`tensor` is the result of torch.empty or a similar function."""
        if type(tensor) not in _PLAIN or tensor.layout is not torch.strided or tensor.device.type == "meta":
            return
        storage = tensor.untyped_storage()
        if storage.nbytes():
            if len(self.unwritten) >= self._purge_at:
                self._purge()
            self.unwritten[storage._cdata] = _Memory(tensor, storage)

    def mark_arguments(self, api: Api, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments in the form to record."""
        if self.unwritten:
            args = tuple(map(self.mark_value, args))
            kwargs = {name: self.mark_value(value) for name, value in kwargs.items()}
        place = _destination(api, args, kwargs)
        if isinstance(place, int):
            args = (*args[:place], _as_destination(args[place]), *args[place + 1 :])
        elif place is not None:
            kwargs = {**kwargs, place: _as_destination(kwargs[place])}
        if kwargs.get("out") is not None:
            kwargs = {**kwargs, "out": _as_destination(kwargs["out"])}
        return args, kwargs

    def mark_value(self, value: Any) -> Any:
        """An argument or a result in the form to record, while some memory is unwritten."""
        if isinstance(value, torch.Tensor):
            return MarkedValue(value, UNINITIALISED) if self._is_unwritten(value) else value
        if type(value) in (list, tuple):
            return type(value)(map(self.mark_value, value))
        return value

    def note_write(self, api: Api, args: Any, kwargs: Any) -> None:
        """After the call: notes which part of the unwritten memory it has written."""
        if api.title == "Ops.fsdp.all_gather_copy_in" and len(args) > 4:  # the data of the other ranks comes later
            return self._write(args[1], lambda part: part.narrow(0, args[3] * args[4], args[3]).fill_(True))
        if api.untracked and not api.collective:
            return self.note_unknown_write((args, kwargs))
        for target in self._targets(api, args, kwargs):
            self._write(target, None)
        partial = _PARTIAL.get(api.name)
        if partial is not None and args and not kwargs.get("accumulate") and "reduce" not in kwargs:
            self._write(args[0], lambda part: partial(part, *args[1:], *kwargs.values()))
        return None

    def note_unknown_write(self, values: Any) -> None:
        """Notes a write by a call that does not say what it writes."""
        for tensor in tensors_in(values, []):
            memory = self._memory(tensor)
            if memory is not None:
                del self.unwritten[tensor.untyped_storage()._cdata]

    def _targets(self, api: Api, args: Any, kwargs: Any) -> list[Any]:
        place = _destination(api, args, kwargs)
        whole = [] if place is None else [args[place] if isinstance(place, int) else kwargs[place]]
        return tensors_in([*whole, kwargs.get("out")], [])

    def _write(self, tensor: Any, mark: Optional[Callable[[Any], None]]) -> None:
        """Notes that all of `tensor` is written, or the part that `mark` marks in its map."""
        memory = self._memory(tensor)
        if memory is None:
            return
        if mark is None:
            memory.count += tensor.numel()
        known = tensor.is_cpu and memory.total <= _FOLLOWED and tensor.element_size() == memory.itemsize
        if known and (mark is not None or tensor.numel() < memory.total):
            with torch.no_grad(), nonplain_tensors.without_modes():
                part = memory.part(tensor)
                if mark is None:
                    part.fill_(True)
                else:
                    mark(part)
                if not memory.map.all():
                    return
        elif mark is None and memory.count < memory.total:
            return
        del self.unwritten[tensor.untyped_storage()._cdata]

    def _is_unwritten(self, tensor: Any) -> bool:
        memory = self._memory(tensor)
        if memory is None or not tensor.numel():
            return False
        if memory.map is None:
            return True
        if tensor.element_size() != memory.itemsize:
            return False
        with torch.no_grad(), nonplain_tensors.without_modes():
            return not bool(memory.part(tensor).all())

    def _memory(self, tensor: Any) -> Optional[_Memory]:
        if type(tensor) not in _PLAIN:
            return None
        try:
            return self.unwritten.get(tensor.untyped_storage()._cdata)
        except (RuntimeError, NotImplementedError):  # a sparse tensor, or a wrapper of torch.func
            return None

    def _purge(self) -> None:
        for key in [key for key, memory in self.unwritten.items() if memory.storage.expired()]:
            del self.unwritten[key]
        self._purge_at = max(64, 2 * len(self.unwritten))


def _as_destination(value: Any) -> Any:
    if isinstance(value, MarkedValue):
        return MarkedValue(value.value, f"{value.members}, {DESTINATION}")
    if isinstance(value, torch.Tensor):
        return MarkedValue(value, DESTINATION)
    if isinstance(value, (list, tuple)):
        return [_as_destination(one) for one in value]
    return value


def _destination(api: Api, args: Any, kwargs: Any) -> Any:
    """The position or name of the argument that the call writes without reading it; None if there is none."""
    name = api.name
    if api.collective and api.prefix == "Distributed":
        if name in _RECEIVING and not (name == "broadcast" and _is_source(args, kwargs)):
            return 0 if args else next((one for one in _RECEIVED if one in kwargs), None)
    elif name in _FILLING:
        return 0 if args else None
    elif name == "__setitem__":
        index = args[1] if len(args) > 1 else None
        parts = index if type(index) is tuple else (index,)
        return 0 if args and all(type(one) in (slice, type(...)) and one in _EVERYTHING for one in parts) else None
    place = _AT.get(api.title)
    if place is None:
        return None
    return place[0] if len(args) > place[0] else (place[1] if place[1] in kwargs else None)


def _is_source(args: Any, kwargs: Any) -> bool:
    """Whether this rank sends the data of a broadcast."""
    group = args[2] if len(args) > 2 else kwargs.get("group")
    if kwargs.get("group_src") is not None:
        return bool(torch.distributed.get_rank(group) == kwargs["group_src"])
    source = args[1] if len(args) > 1 else kwargs.get("src")
    return bool(torch.distributed.get_rank() == source)
