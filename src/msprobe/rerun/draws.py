"""How many random numbers a generator has given out: from its seed and a checksum of its state."""

from __future__ import annotations

import zlib
from typing import Any, Optional

import numpy as np

BLOCK = 624
_MOST_BLOCKS = 100_000


def count_draws(seed: int, position: int, checksum: int) -> Optional[int]:
    """The numbers of 32 bits that torch's CPU generator has drawn since it was seeded; None beyond 62 million."""
    words: Any = np.random.RandomState(seed & 0xFFFFFFFF).get_state(legacy=False)["state"]["key"]
    engine: Any = np.random.MT19937()
    engine.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": BLOCK}}
    for block in range(_MOST_BLOCKS):
        if zlib.crc32(words.astype(np.uint64).tobytes()) == checksum:
            return 0 if block == 0 else (block - 1) * BLOCK + position
        engine.random_raw(BLOCK)
        words = engine.state["state"]["key"]
    return None
