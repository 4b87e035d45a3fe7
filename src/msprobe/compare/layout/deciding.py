"""Decides when the ranks of two runs are compared as one, and explains why ranks cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Optional

from msprobe.compare.layout.dimensions import ranks_text
from msprobe.compare.measure.distance import value_key
from msprobe.compare.rows import is_tensor
from msprobe.compare.sources import Source
from msprobe.dump.errors import DumpError
from msprobe.dump.names import MODULE_PREFIXES

_MODULES = tuple(f"{prefix}." for prefix in MODULE_PREFIXES)
_TRIED, _NEAR = 8, 16
"""How many results are checked, on how many ranks: a tensor that is cut by hand is cut over neighbouring ranks."""
_LISTED = 64
"""At most this many missing ranks are listed: a damaged world_size may be any number."""


def other_layout(target: Sequence[Source], golden: Sequence[Source]) -> bool:
    """Whether the ranks of one step do not simply pair: a different number of ranks, other groups, other meshes, or
    parts of tensors that the ranks of the other run all have complete."""
    ours, theirs = world_size(target), world_size(golden)
    if ours is not None and theirs is not None and ours != theirs:
        return True
    if ours is None or theirs is None:
        return len(target) != len(golden)
    if not len(target) == len(golden) > 1:
        return False
    return _arrangement(target) != _arrangement(golden) or _has_parts_of_copies(target, golden)


def world_size(ranks: Sequence[Source]) -> Optional[int]:
    """As in run.json; None if it is not there, as in dumps of other tools."""
    sizes = {size for rank in ranks if isinstance(size := rank.run.get("world_size"), int)}
    if len(sizes) == 1:
        return sizes.pop()
    return 1 if not sizes and len(ranks) == 1 and "msprobe" in ranks[0].run else None


def _arrangement(ranks: Sequence[Source]) -> Any:
    """What run.json says of groups, meshes and flat parameters, in a form that can be compared."""
    groups: set[tuple[int, ...]] = set()
    meshes: set[str] = set()
    stages: set[str] = set()
    flat = False  # whether parameters are kept in flat shards (FSDP1)
    for rank in ranks:
        listed = rank.run.get("groups")
        for group in listed if isinstance(listed, list) else []:
            if isinstance(group, list) and all(type(one) is int for one in group):
                groups.add(tuple(sorted(group)))
        parallel = rank.run.get("parallel")
        if isinstance(parallel, dict):
            for mesh in parallel.get("meshes") or []:
                if isinstance(mesh, dict):
                    meshes.add(f"{mesh.get('names')} {mesh.get('ranks')}")
            parameters = parallel.get("parameters")
            kept = parameters.values() if isinstance(parameters, dict) else ()
            flat |= any(isinstance(one, dict) and one.get("flat") is True for one in kept)
            if isinstance(parallel.get("pipeline"), dict):
                stages.add(str(parallel["pipeline"].get("stages")))
    return groups, meshes, stages, flat


def _has_parts_of_copies(target: Sequence[Source], golden: Sequence[Source]) -> bool:
    """Whether the ranks of one run have parts of tensors that are complete, and the same, on the ranks of the other
    run: plain tensors that were cut by hand (sequence parallelism against tensor parallelism)."""
    ours, theirs = _results(target[0]), _results(golden[0])
    tried = 0
    for name, one in ours.items():
        for part, whole, parts, wholes in (
            (one, theirs.get(name), target, golden),
            (theirs.get(name), one, golden, target),
        ):
            times = _times(part, whole, len(target))
            if times > 1 and tried < _TRIED:
                tried += 1
                near = min(len(target), _NEAR)
                if _count_values(wholes[:near], name) * times <= near < _count_values(parts[:near], name) * times:
                    return True
    return False


def _results(source: Source) -> dict[str, dict[str, Any]]:
    """The first results of modules that are tensors; empty for a damaged dump, which is reported later."""
    try:
        names = [name for name in source.records if name.startswith(_MODULES) and ".forward." in name]
        return {name: one for name in names if (one := _first_result(source, name)) is not None}
    except DumpError:
        return {}


def _first_result(source: Source, name: str) -> Optional[dict[str, Any]]:
    record = source.records.get(name)
    output = record.get("output") if isinstance(record, dict) else None
    first = output[0] if isinstance(output, list) and output else None
    return first if isinstance(first, dict) and is_tensor(first) else None


def _times(part: Optional[dict[str, Any]], whole: Optional[dict[str, Any]], world: int) -> int:
    """How often a part goes into the complete tensor, along one dimension and over ranks that divide the world."""
    if part is None or whole is None:
        return 1
    small, large = (one["shape"] for one in (part, whole))
    if len(small) != len(large) or not all(type(size) is int and size > 0 for size in (*small, *large)):
        return 1
    odd = [(a, b) for a, b in zip(small, large) if a != b]
    if len(odd) != 1 or odd[0][1] % odd[0][0]:
        return 1
    times: int = odd[0][1] // odd[0][0]
    return times if world % times == 0 else 1


def _count_values(ranks: Sequence[Source], name: str) -> int:
    """How many different values a result has on some ranks."""
    try:
        return len({value_key(_first_result(rank, name)) for rank in ranks})
    except DumpError:
        return len(ranks)


def check_ranks(path: Path, ranks: Sequence[Source]) -> None:
    """Raises DumpError if the ranks of a step cannot be from one run."""
    numbers = [rank.rank for rank in ranks if rank.rank is not None]
    sizes = {size for rank in ranks if isinstance(size := rank.run.get("world_size"), int)}
    if len(sizes) > 1:
        listed = " and ".join(str(size) for size in sorted(sizes))
        raise DumpError(
            f"{path}: its ranks have different world sizes ({listed}), so they are not from the same run. "
            "Give a dump that one run wrote."
        )
    size = next(iter(sizes), len(numbers))
    known = set(numbers) if len(numbers) == len(ranks) else set(range(len(ranks)))
    lost = list(islice((rank for rank in range(size) if rank not in known), _LISTED))
    if lost:
        more = " and others" if size - len(known) > len(lost) else ""
        verb = "is" if len(lost) == 1 and not more else "are"
        raise DumpError(
            f"{path}: {ranks_text(lost)}{more} of {size} {verb} missing, so the shards cannot "
            "be put together. Collect every rank (without `rank` in config.json), or compare rank by rank with --rank."
        )
    _check_versions(path, ranks)


def _check_versions(path: Path, ranks: Sequence[Source]) -> None:
    for key, name in (
        ("framework", "frameworks"),
        ("torch", "versions of PyTorch"),
        ("mindspore", "versions of MindSpore"),
    ):
        seen = {str(rank.run[key]) for rank in ranks if key in rank.run}
        if len(seen) > 1:
            raise DumpError(
                f"{path}: its ranks have different {name} ({', '.join(sorted(seen))}): they are not from the same run."
            )
    for key in ("task", "level"):
        seen = {str(rank.head.get(key)) for rank in ranks}
        if len(seen) > 1:
            raise DumpError(
                f"{path}: its ranks do not have the same {key} ({', '.join(sorted(seen))}). "
                f"Collect all ranks with the same {key}."
            )
