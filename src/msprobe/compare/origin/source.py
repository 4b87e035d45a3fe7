"""The line of the user's code that made a call, from stack.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Optional

from msprobe.compare.calls import BACKWARD, Match

_FRAME = re.compile(r"\s*File (?P<path>.+?), line (?P<line>\d+), in (?P<name>[^,\n]+)")
_NOT_THE_USERS = ("/site-packages/", "site-packages/", "/dist-packages/", "/msprobe/", "<frozen", "/lib/python3")


def user_line(stacks: tuple[Mapping[str, list[str]], Mapping[str, list[str]]], match: Match) -> Optional[str]:
    """`train.py:14 in forward`: the innermost frame outside installed packages; of the target, else of the golden."""
    for call, known in zip((match.target, match.golden), stacks):
        if call is None:
            continue
        frames = known.get(call.name)
        if frames is None and call.direction == BACKWARD:
            forward = (
                f"{call.key}.forward.{call.number}" if call.kind == "module" else f"{call.key}.{call.number}.forward"
            )
            frames = known.get(forward)
        found = [m for m in map(_FRAME.match, frames or []) if m]
        users = [m for m in found if not any(part in m["path"] for part in _NOT_THE_USERS)]
        if users:
            return f"{users[0]['path']}:{users[0]['line']} in {users[0]['name'].strip()}"
    return None
