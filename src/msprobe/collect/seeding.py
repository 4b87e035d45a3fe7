"""What every framework shares about random numbers: seeds and states of Python's and numpy's generators."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterable
from typing import Any, Callable

import numpy as np

Sample = list[Any]
"""The state of a generator in few bytes: [kind, seed, position or -1, CRC-32 of the rest]."""


def seed_host(seed: int, mode: bool, rm_dropout: bool) -> None:
    """Checks the arguments of `seed_all`, seeds Python and numpy, and sets the environment variables."""
    for name, value, kind in (("seed", seed, int), ("mode", mode, bool), ("rm_dropout", rm_dropout, bool)):
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise TypeError(f"seed_all: {name} takes {kind.__name__}, not {value!r}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed_all: seed takes 0 to 2**32 - 1 (numpy's range), not {seed}")
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)
    if mode:
        os.environ["HCCL_DETERMINISTIC"] = "true"


def host_states() -> dict[str, int]:
    """Checksums of the states of Python's and numpy's global generators."""
    words: Any = np.random.get_state()
    return {
        "python": zlib.crc32(repr(random.getstate()).encode()),
        "numpy": zlib.crc32(repr(words[2:]).encode(), zlib.crc32(words[1].tobytes())),
    }


def pin_seeds(seed: int, places: Iterable[tuple[Any, str]]) -> None:
    """Every call that seeds a global generator gets this number from now on. `places` are those of a framework."""

    def pinned(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **named: function(seed)

    for module, name in (*places, (random, "seed"), (np.random, "seed")):
        setattr(module, name, pinned(getattr(module, name)))
