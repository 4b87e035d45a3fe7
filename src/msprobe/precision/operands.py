"""Which tensors of a dump enter matrix products: these are the ones that a low-precision format stores.

A product is a module with a weight of two or more dimensions (Linear, Conv2d, Dense), or the call of an API such as
matmul that belongs to no such module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

from msprobe.dump.items import Record, items
from msprobe.dump.names import BACKWARD, FORWARD, backward_of, is_module, module_class, module_path, parse_name
from msprobe.dump.products import GRADIENTS, INPUTS, WEIGHTS, names_weight, product_word, role_of
from msprobe.dump.reader import RankDump


@dataclass(frozen=True)
class Operand:
    """A tensor that enters a product. `module` is its path in the model, "" if it is unknown."""

    place: str
    module: str
    role: str
    call: str
    slot: str
    item: dict[str, Any]
    channels_first: bool = False


def operands(rank: RankDump) -> Iterator[Operand]:
    """The operands of every product in a rank directory, in the order of the calls."""
    records = rank.records
    inside = _products_inside(rank)
    modules = {name for name, record in records.items() if _is_product_module(name, record) and inside[name] < 2}
    for name, record in records.items():
        if name in modules:
            key = parse_name(name).key
            path = module_path(key) or module_class(key)
            yield from _of_module(name, record, records.get(backward_of(name)), path)
        elif product_word(name):
            parent = _parent(rank, name)
            if parent not in modules:
                path = module_path(parse_name(parent).key) if parent else ""
                yield from _of_api(name, record, records.get(backward_of(name)), path)


def _products_inside(rank: RankDump) -> Counter[str]:
    """How many products the APIs directly inside each module compute."""
    parents = (_parent(rank, name) for name in rank.records if product_word(name))
    return Counter(parent for parent in parents if parent)


def _parent(rank: RankDump, name: str) -> Optional[str]:
    parent = rank.construct.get(name)
    return parent if parent and is_module(parent) else None


def _is_product_module(name: str, record: Record) -> bool:
    parsed = parse_name(name)
    if parsed.kind != "module" or parsed.direction != FORWARD or "Embedding" in module_class(parsed.key):
        return False
    found = dict(items(record))
    return _is_float(found.get("input.0")) and any(_is_weight(slot, item) for slot, item in found.items())


def _is_weight(slot: str, item: Any) -> bool:
    return names_weight(slot) and _is_float(item) and len(_shape(item)) >= 2


def _of_module(name: str, record: Record, backward: Optional[Record], path: str) -> Iterator[Operand]:
    channels = "conv" in module_class(parse_name(name).key).lower()
    for slot, item in items(record):
        if _is_weight(slot, item):
            yield Operand(path, path, WEIGHTS, name, slot, item)
        elif slot == "input.0" and _is_float(item):
            yield Operand(path, path, INPUTS, name, slot, item, channels)
    yield from _gradients(name, backward, path, path, channels)


def _of_api(name: str, record: Record, backward: Optional[Record], path: str) -> Iterator[Operand]:
    word = product_word(name)
    parsed = parse_name(name)
    call = f"{parsed.key}.{parsed.number}"
    place = f"{path}: {call}" if path else call
    channels = word.startswith("conv")
    for slot, item in items(record):
        role = role_of(word, slot)
        if role and _is_float(item) and _shape(item):
            yield Operand(place, path, role, name, slot, item, channels and role != WEIGHTS)
    yield from _gradients(name, backward, place, path, channels)


def _gradients(call: str, backward: Optional[Record], place: str, path: str, channels: bool) -> Iterator[Operand]:
    """The gradients of the outputs. A record of a backward has them as its inputs."""
    for slot, item in items(backward or {}):
        if slot.startswith("input.") and _is_float(item) and _shape(item):
            name = parse_name(call)
            yield Operand(place, path, GRADIENTS, call.replace(f".{FORWARD}", f".{BACKWARD}"), slot, item, channels)
            if name.kind == "module":
                return


def _is_float(item: Any) -> bool:
    return isinstance(item, dict) and "float" in str(item.get("dtype", "")).lower()


def _shape(item: dict[str, Any]) -> list[int]:
    shape = item.get("shape")
    return shape if isinstance(shape, list) and all(isinstance(size, int) for size in shape) else []
