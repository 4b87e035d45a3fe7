"""Where a call is in the user's code, and in the library that made it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Optional

from msprobe.compare.calls import Match, forward_name
from msprobe.dump.stack_frames import Frame, is_debugger, is_library, parse_frame

Stacks = tuple[Mapping[str, list[str]], Mapping[str, list[str]]]


def user_line(stacks: Stacks, match: Match) -> Optional[str]:
    """`train.py:14 in forward`: the innermost frame outside installed packages, of the target or else of the golden
    run."""
    for frames in _frames(stacks, match):
        for frame in frames:
            if not is_library(frame.file):
                return f"{frame.file}:{frame.line} in {frame.function}"
    return None


def library_line(stacks: Stacks, match: Match) -> Optional[str]:
    """`adam.py:345: param.mul_(1 - lr * weight_decay)`: the innermost frame, if it is in an installed package."""
    for frames in _frames(stacks, match):
        inner = next((frame for frame in frames if not _passes_on(frame)), None)
        if inner is not None and is_library(inner.file):
            file = inner.file.replace("\\", "/").rpartition("/")[2]
            return f"{file}:{inner.line}: {inner.text or f'in {inner.function}'}"
    return None


def _frames(stacks: Stacks, match: Match) -> Iterator[list[Frame]]:
    for call, known in zip((match.target, match.golden), stacks):
        if call is None:
            continue
        texts = known.get(call.name) or known.get(forward_name(call)) or []
        found = [frame for text in texts if isinstance(text, str) and (frame := parse_frame(text)) is not None]
        if found:
            yield found


def _passes_on(frame: Frame) -> bool:
    """Whether the frame only passes a call on."""
    dispatching = "handle_torch_function" in f"{frame.function} {frame.text}"
    path = frame.file.replace("\\", "/")
    return dispatching or is_debugger(path) or path.endswith(("nn/modules/module.py", "overrides.py"))
