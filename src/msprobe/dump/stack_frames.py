"""The line of a stack that a user wants to see first: the innermost that is not in an installed package."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Optional

_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages", "lib/python3"))
_FRAME = re.compile(r"File (?P<file>.+), line (?P<line>\d+), in (?P<function>.*?), ?\n? ?(?P<text>.*)", re.DOTALL)


def source_frame(frames: Sequence[str]) -> Optional[str]:
    """The frame of stack.json to show, or None without any."""
    for frame in frames:
        found = _FRAME.match(frame)
        if found and not any(part in found["file"] for part in _INSTALLED) and not found["file"].startswith("<"):
            return frame
    return frames[0] if frames else None


def source_line(frames: Sequence[str]) -> Optional[str]:
    """`file:line (source)` of that frame."""
    frame = source_frame(frames)
    found = _FRAME.match(frame) if frame is not None else None
    if found is None:
        return None
    text = found["text"].strip()
    return f"{found['file']}:{found['line']}" + (f" ({text})" if text else "")
