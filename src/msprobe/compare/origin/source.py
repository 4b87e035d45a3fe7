"""Where a call is in the user's code, and in the library that made it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Optional

from msprobe.compare.calls import Match, forward_name
from msprobe.dump.stack_frames import Frame, is_debugger, is_library, parse_frame

Stacks = tuple[Mapping[str, list[str]], Mapping[str, list[str]]]


Lines = tuple[Optional[str], Optional[str]]
"""The line of the target and that of the golden run; None where a run does not make the call."""


def user_lines(stacks: Stacks, match: Match) -> Lines:
    """`train.py:14 in forward`: the innermost frame outside installed packages."""
    target, golden = _frames(stacks, match)
    return _user_line(target), _user_line(golden)


def library_lines(stacks: Stacks, match: Match) -> Lines:
    """`adam.py:345: param.mul_(1 - lr * weight_decay)`: the innermost frame, if it is in an installed package."""
    target, golden = _frames(stacks, match)
    return _library_line(target), _library_line(golden)


def _user_line(frames: list[Frame]) -> Optional[str]:
    frame = next((frame for frame in frames if not is_library(frame.file)), None)
    return None if frame is None else f"{frame.file}:{frame.line} in {frame.function}"


def library_frame(frames: Iterable[Frame]) -> Optional[Frame]:
    """The innermost frame that does more than pass a call on, if it is in an installed package."""
    inner = next((frame for frame in frames if not _passes_on(frame)), None)
    return inner if inner is not None and is_library(inner.file) else None


def _library_line(frames: list[Frame]) -> Optional[str]:
    inner = library_frame(frames)
    if inner is None:
        return None
    file = inner.file.replace("\\", "/").rpartition("/")[2]
    return f"{file}:{inner.line}: {inner.text or f'in {inner.function}'}"


def _frames(stacks: Stacks, match: Match) -> Iterator[list[Frame]]:
    """The frames of the target and of the golden run."""
    for call, known in zip((match.target, match.golden), stacks):
        texts = [] if call is None else known.get(call.name) or known.get(forward_name(call)) or []
        yield [frame for text in texts if isinstance(text, str) and (frame := parse_frame(text)) is not None]


def _passes_on(frame: Frame) -> bool:
    """Whether the frame only passes a call on."""
    dispatching = "handle_torch_function" in f"{frame.function} {frame.text}"
    path = frame.file.replace("\\", "/")
    return dispatching or is_debugger(path) or path.endswith(("nn/modules/module.py", "overrides.py"))
