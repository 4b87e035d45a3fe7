"""The states of the random generators, so that two runs can be compared: which one differs, and by how many numbers."""

from __future__ import annotations

import gc
import multiprocessing.process
import sys
import zlib
from typing import Any, Optional

import torch

from msprobe.collect.seeding import Sample, host_states

# The state of torch's CPU generator: seed (8 bytes), left, seeded (4 each), next (8), 624 words of 8 bytes, …
_NEXT = slice(16, 24)
_WORDS = slice(24, 24 + 624 * 8)


def sample(generator: Optional[torch.Generator] = None) -> Sample:
    """The state of a generator of torch. The position in the block and the CRC-32 of the block: of a CPU generator; of
    others, the CRC of the state."""
    source = torch.default_generator if generator is None else generator
    state = source.get_state().numpy().tobytes()
    kind = source.device.type
    if kind != "cpu":
        return [kind, source.initial_seed(), -1, zlib.crc32(state)]
    return [kind, source.initial_seed(), int.from_bytes(state[_NEXT], sys.byteorder), zlib.crc32(state[_WORDS])]


def all_states() -> dict[str, Any]:
    """The states of the global generators of torch, Python and numpy."""
    return {"torch": sample(), **host_states()}


def loader_workers() -> int:
    """The number of worker processes of the DataLoaders that are running. Not with gc.get_objects(): it also returns
    the tuples that other threads are making, which then fails there. The search takes long, so it needs a child."""
    if not multiprocessing.process._children:  # type: ignore[attr-defined]  # active_children() would reap them
        return 0
    kind = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    return sum(len(one._workers) for one in gc.get_referrers(kind) if type(one) is kind)
