"""Process groups and device meshes.

Torch lists its groups but not its meshes: they are found among all living objects. This takes about 30 ms, so it is
done only if the number of groups has changed.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import torch


def is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def named_groups() -> dict[str, list[int]]:
    """Every process group that this process is in: its name and its ranks, in the order of the group."""
    world = torch.distributed.distributed_c10d._world
    found: dict[str, list[int]] = {}
    own = torch.distributed.get_rank()
    for group, ranks in world.pg_group_ranks.items():
        if own not in ranks:
            continue
        number = str(world.pg_names.get(group, len(found)))
        title = getattr(group, "group_desc", "")
        name = title if title and title != "undefined" else number
        found[f"{name}.{number}" if name in found else name] = sorted(ranks, key=ranks.get)
    return found


def batch_part(samplers: Iterable[Any]) -> Optional[dict[str, Any]]:
    """Which part of the global batch this rank has, if all distributed samplers agree."""
    found = {(int(one.rank), int(one.num_replicas)) for one in samplers}
    if len(found) != 1:
        return None
    part, of = found.pop()
    return {"part": part, "of": of, "order": "strided"} if of > 1 else None


class LivingObjects:
    """The device meshes and distributed samplers of this process, held weakly."""

    def __init__(self) -> None:
        self._groups = 0
        self._found: list[weakref.ref[Any]] = []

    def of_kind(self, module: str, name: str) -> Iterator[Any]:
        """The objects of a class of torch or a subclass, in the order in which they were made."""
        kind = getattr(sys.modules.get(module), name, None)
        if kind is None:
            return
        for reference in self._found:
            one = reference()
            if isinstance(one, kind):
                yield one

    def look(self) -> None:
        """Searches again if there are new groups."""
        groups = len(torch.distributed.distributed_c10d._world.pg_group_ranks)
        if groups == self._groups:
            return
        self._groups = groups
        kinds = [
            kind for place in _PLACES for kind in _with_subclasses(getattr(sys.modules.get(place[0]), place[1], None))
        ]
        self._found = [weakref.ref(one) for one in gc.get_referrers(*kinds) if type(one) in kinds] if kinds else []


MESH = ("torch.distributed.device_mesh", "DeviceMesh")
SAMPLER = ("torch.utils.data.distributed", "DistributedSampler")
_PLACES = (MESH, SAMPLER)


def _with_subclasses(kind: Any) -> list[type]:
    if kind is None:
        return []
    return [kind, *(below for one in type.__subclasses__(kind) for below in _with_subclasses(one))]
