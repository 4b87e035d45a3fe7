"""The states of the random generators, so that two runs can be compared: which one differs, and by how many numbers."""

from __future__ import annotations

import gc
import random
import sys
import zlib
from typing import Any, Optional

import numpy as np
import torch

# The state of torch's CPU generator: seed (8 bytes), left, seeded (4 each), next (8), 624 words of 8 bytes, …
_NEXT = slice(16, 24)
_WORDS = slice(24, 24 + 624 * 8)

Sample = list[Any]
"""[device, seed, position in the block, CRC-32 of the block]: of a CPU generator; of others, the CRC of the state."""


def sample(generator: Optional[torch.Generator] = None) -> Sample:
    """The state of a generator of torch, in few bytes."""
    source = torch.default_generator if generator is None else generator
    state = source.get_state().numpy().tobytes()
    kind = source.device.type
    if kind != "cpu":
        return [kind, source.initial_seed(), -1, zlib.crc32(state)]
    return [kind, source.initial_seed(), int.from_bytes(state[_NEXT], sys.byteorder), zlib.crc32(state[_WORDS])]


def all_states() -> dict[str, Any]:
    """The states of the global generators of torch, Python and numpy."""
    words: Any = np.random.get_state()
    return {
        "torch": sample(),
        "python": zlib.crc32(repr(random.getstate()).encode()),
        "numpy": zlib.crc32(repr(words[2:]).encode(), zlib.crc32(words[1].tobytes())),
    }


def loader_workers() -> int:
    """The number of worker processes of the DataLoaders that are running. Not with gc.get_objects(): it also returns
    the tuples that other threads are making, which then fails there."""
    kind = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    return sum(len(one._workers) for one in gc.get_referrers(kind) if type(one) is kind)
