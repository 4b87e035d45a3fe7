"""Checks an untrusted construct.json: following a call that is inside itself would never end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional


def cut_loops(parents: Mapping[str, Optional[str]]) -> tuple[dict[str, Optional[str]], int]:
    """The parents without loops, and the number of calls that lost their parent for this."""
    sound: dict[str, Optional[str]] = dict(parents)
    checked: set[str] = set()
    cut = 0
    for name in parents:
        path: set[str] = set()
        at: Optional[str] = name
        while at is not None and at not in checked:
            path.add(at)
            above = sound.get(at)
            if above in path:
                sound[at] = above = None
                cut += 1
            at = above
        checked |= path
    return sound, cut
