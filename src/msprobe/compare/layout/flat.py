"""Flat parameters of FSDP1: a rank has some elements of each parameter, often none, in one tensor or in several.

The gradients and updates of such runs are put side by side parameter by parameter, as flattened tensors. What a rank
has of one is an item with the range of its elements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, Optional

import numpy as np

from msprobe.compare.calls import GRADS, Call, module_path
from msprobe.compare.layout.dimensions import parallel_of
from msprobe.compare.layout.parts import WRAPPERS, Label, Part
from msprobe.compare.layout.updates import calls_in_step, optimizer_names
from msprobe.compare.rows import is_tensor
from msprobe.compare.sources import Source
from msprobe.dump.errors import DumpError

_FIGURES = ("Max", "Min", "Mean", "Norm", "md5")


class Piece(NamedTuple):
    """A rank's elements `first` to `last` (not included) of a flattened parameter. `offset` is where they begin in the
    flat tensor, None where each parameter has a tensor of its own (use_orig_params)."""

    name: str
    shape: tuple[int, ...]
    first: int
    last: int
    offset: Optional[int]

    @property
    def size(self) -> int:
        return self.last - self.first


class PartItem(dict[str, Any]):
    """An item that stands for flattened elements of a tensor file: those from `start` on, as many as its shape says.
    `piece` is None for a complete tensor that is only flattened."""

    piece: Optional[Piece] = None
    start: int = 0
    file_shape: tuple[int, ...] = ()
    unsplit = False
    """Its statistics are those of other parameters too."""

    def cut(self, array: Any) -> Any:
        """The elements, in one dimension; the array as it is where the file is another one than was recorded."""
        if tuple(array.shape) != self.file_shape:
            return array
        return np.reshape(array, -1)[self.start : self.start + self["shape"][0]]


class FlatParts(NamedTuple):
    """The pieces of one rank: those of each flat parameter in order, and each parameter's. Names have no wrappers."""

    units: Mapping[str, tuple[Piece, ...]]
    parameters: Mapping[str, Piece]


def read_flat(source: Source) -> FlatParts:
    parallel = parallel_of(source)
    units: dict[str, tuple[Piece, ...]] = {}
    parameters: dict[str, Piece] = {}
    for name, parts in parallel.flat.items():
        pieces, offset = [], 0
        for part in parts:
            pieces.append(Piece(part.name, part.shape, part.first, part.last, offset))
            offset += part.last - part.first
        units[".".join(step for step in name.split(".") if step not in WRAPPERS)] = tuple(pieces)
        parameters.update((piece.name, piece._replace(offset=None)) for piece in pieces)
    tied = {other: parameters[first] for other, first in parallel.shared.items() if first in parameters}
    return FlatParts(units, {**parameters, **tied})


def check_flat(sources: Sequence[Source]) -> bool:
    """Whether the run has flat parameters; DumpError where the parts of its ranks do not make up a parameter."""
    found: dict[str, set[tuple[int, int, tuple[int, ...]]]] = defaultdict(set)
    for source in sources:
        for parts in parallel_of(source).flat.values():
            for part in parts:
                found[part.name].add((part.first, part.last, part.shape))
    for name, pieces in found.items():
        at = 0
        shapes = {shape for _, _, shape in pieces}
        for first, last, _ in sorted(pieces):
            at = last if first == at else -1
        if len(shapes) > 1 or at != prod(min(shapes)):
            listed = ", ".join(f"{first}-{last}" for first, last, _ in sorted(pieces)[:6])
            raise DumpError(
                f"{name}: the ranks have the elements {listed} of shape {list(min(shapes))}, which do not make up the "
                "parameter. The dumps of these ranks contradict each other: collect them again in one run."
            )
    return bool(found)


# Calls of one parameter


def calls_by_parameter(part: Part, flat: FlatParts, known: set[str]) -> dict[str, list[tuple[Call, Optional[Label]]]]:
    """The gradients of parameters, by their module, and the calls of the optimizer, by their parameter. `known` are
    the parameters that some rank has in flat ones."""
    found: dict[str, list[tuple[Call, Optional[Label]]]] = {}
    if part.microbatch == 0:
        for name, call, label in (*_gradients(part, flat), *_updates(part, flat, known)):
            found.setdefault(name, []).append((call, label))
    return found


def _gradients(part: Part, flat: FlatParts) -> Iterator[tuple[str, Call, Optional[Label]]]:
    for call in part.calls:
        if call.direction == GRADS and isinstance(call.record, dict):
            path = module_path(call.key)
            record = {
                name: _cut(value, flat.parameters.get(f"{path}.{name}" if path else name))
                for name, value in call.record.items()
            }
            yield call.key, call._replace(record=record), None


def _updates(part: Part, flat: FlatParts, known: set[str]) -> Iterator[tuple[str, Call, Label]]:
    """(parameter, call, label) of the calls that an optimizer makes for each parameter; a call for several parameters
    is one for each."""
    given = optimizer_names(part.source)
    names = [name for name in given if name in flat.parameters or name not in known]  # others have no gradient here
    by_key: dict[str, list[Call]] = defaultdict(list)
    for call in calls_in_step(part):
        by_key[call.key].append(call)
    for key, made in by_key.items() if names else ():
        lists = all(_takes_lists(call, len(names)) for call in made)
        each, left = (1, 0) if lists else divmod(len(made), len(names))
        for number, call in enumerate(made if each and not left else ()):
            for place in range(len(names)) if lists else (number // each,):
                name, record = names[place], _pick(call.record, place, len(names)) if lists else call.record
                pieces: Sequence[Piece] = flat.units.get(name) or ()
                if name not in flat.units:
                    label = Label(name, key, True, number if lists else number % each)
                    yield name, call._replace(record=_cut(record, flat.parameters.get(name))), label
                for piece in pieces:
                    label = Label(piece.name, key, True, number if lists else number % each)
                    yield piece.name, call._replace(record=_cut(record, piece)), label


def _takes_lists(call: Call, count: int) -> bool:
    given = call.record.get("input_args") if isinstance(call.record, dict) else None
    first = given[0] if isinstance(given, list) and given else None
    word = call.key.rpartition(".")[2]
    return word.startswith(("_foreach_", "_fused_")) and isinstance(first, list) and len(first) == count


def _pick(value: Any, place: int, count: int) -> Any:
    """A record of lists with what it has of one parameter."""
    if isinstance(value, list):
        if len(value) == count and all(isinstance(one, dict) and is_tensor(one) for one in value):
            return value[place]
        return [_pick(one, place, count) for one in value]
    if isinstance(value, dict) and not isinstance(value.get("type"), str):
        return {key: _pick(one, place, count) for key, one in value.items()}
    return value


def _cut(value: Any, piece: Optional[Piece]) -> Any:
    """A record, or a part of it, with what it has of one parameter."""
    if piece is None:
        return value
    if isinstance(value, list):
        return [_cut(one, piece) for one in value]
    if isinstance(value, dict) and not isinstance(value.get("type"), str):
        return {key: _cut(one, piece) for key, one in value.items()}
    if not isinstance(value, dict) or not is_tensor(value) or len(value["shape"]) != 1:
        return value
    size, start = value["shape"][0], piece.offset or 0
    if not isinstance(size, int) or (size != piece.size if piece.offset is None else size < start + piece.size):
        return value
    alone = size == piece.size
    item = PartItem({key: one for key, one in value.items() if alone or key not in _FIGURES})
    item["shape"] = [piece.size]
    item.piece, item.start, item.file_shape, item.unsplit = piece, start, (size,), not alone and "data_name" not in item
    return item


def flatten(item: Optional[dict[str, Any]]) -> Optional[dict[str, Any]]:
    """An item in one dimension."""
    if item is None or not is_tensor(item) or isinstance(item, PartItem):
        return item
    local = item.get("local_shape")
    shape = local if isinstance(local, list) else item["shape"]
    found = PartItem(item)
    found["shape"] = [prod(shape)]
    found.pop("local_shape", None)
    found.file_shape = tuple(shape)
    return found
