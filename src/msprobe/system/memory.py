"""How much memory this process may use: what a machine cannot hold is refused before it is read."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
from pathlib import Path

_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
PARSED = 8
"""Parsed JSON takes up to about so many times the memory of its text."""


@functools.lru_cache(maxsize=1)
def largest_text() -> int:
    """The largest text, in bytes, that is read as a whole: an eighth of the memory of this machine or container."""
    limits = [os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()]
    for file in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            limits.append(int(Path(file).read_text(encoding="ascii")))
    own = resource.getrlimit(resource.RLIMIT_AS)[0]
    if own != resource.RLIM_INFINITY:
        limits.append(own)
    return min(limits) // PARSED


def size_text(size: int) -> str:
    """A size for a message: `64.0 GiB`."""
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
