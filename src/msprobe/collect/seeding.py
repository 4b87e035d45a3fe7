"""The part of `seed_all` that every framework shares: its arguments, and Python's and numpy's random numbers."""

from __future__ import annotations

import os
import random

import numpy as np


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
