"""The line of the user's code that made a call, from stack.json."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Optional

from msprobe.compare.calls import Match, forward_name

_FRAME = re.compile(r"\s*File (?P<path>.+?), line (?P<line>\d+), in (?P<name>[^,\n]+)")
_NOT_THE_USERS = ("/site-packages/", "site-packages/", "/dist-packages/", "/msprobe/", "<frozen", "/lib/python3")


Stacks = tuple[Mapping[str, list[str]], Mapping[str, list[str]]]


def user_line(stacks: Stacks, match: Match) -> Optional[str]:
    """`train.py:14 in forward`: the innermost frame outside installed packages; of the target, else of the golden."""
    for frames in _frames(stacks, match):
        users = [m for m in frames if not _is_installed(m)]
        if users:
            return f"{users[0]['path']}:{users[0]['line']} in {users[0]['name'].strip()}"
    return None


def library_line(stacks: Stacks, match: Match) -> Optional[str]:
    """`adam.py:345: param.mul_(1 - lr * weight_decay)`: the innermost frame, where it is in an installed package."""
    for frames in _frames(stacks, match):
        inner = [m for m in frames if not _is_machinery(m)]
        if inner and _is_installed(inner[0]):
            found = inner[0]
            code = found.string[found.end() :].strip(" ,\n")
            return f"{found['path'].rpartition('/')[2]}:{found['line']}: {code or 'in ' + found['name'].strip()}"
    return None


def _frames(stacks: Stacks, match: Match) -> Iterator[list[re.Match[str]]]:
    for call, known in zip((match.target, match.golden), stacks):
        if call is None:
            continue
        frames = known.get(call.name) or known.get(forward_name(call)) or []
        found = [m for m in map(_FRAME.match, (f for f in frames if isinstance(f, str))) if m]
        if found:
            yield found


def _is_installed(frame: re.Match[str]) -> bool:
    return any(part in frame["path"] for part in _NOT_THE_USERS)


def _is_machinery(frame: re.Match[str]) -> bool:
    """Frames that only pass a call on."""
    dispatching = "handle_torch_function" in frame.string
    return (
        dispatching or "/msprobe/" in frame["path"] or frame["path"].endswith(("nn/modules/module.py", "overrides.py"))
    )
