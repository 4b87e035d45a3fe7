"""The line of the user's code that made a call, from stack.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from msprobe.compare.calls import Match
from msprobe.dump.names import forward_of
from msprobe.dump.stack_frames import user_frame


def user_line(stacks: tuple[Mapping[str, list[str]], Mapping[str, list[str]]], match: Match) -> Optional[str]:
    """`train.py:14 in forward`: the innermost frame outside installed packages; of the target, else of the golden."""
    for call, known in zip((match.target, match.golden), stacks):
        if call is None:
            continue
        frame = user_frame(known.get(call.name) or known.get(forward_of(call.name)) or [])
        if frame is not None:
            return f"{frame.file}:{frame.line} in {frame.function}"
    return None
