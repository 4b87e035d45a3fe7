"""Frames of a stack for the page, and the lines around the user's line.

The path of a source file comes from the dump, which is not trusted. Lines are shown only if the file is a Python file
that has the recorded line: a dump cannot make the page show other files of the reader.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from msprobe.dump.stack_frames import Frame, is_library, parse_frame
from msprobe.dump.untrusted.regular_files import read_regular

AROUND = 3
MOST_BYTES = 4 << 20
MOST_FRAMES = 200
LONGEST = 400


def frames_of(stack: list[str]) -> list[dict[str, Any]]:
    """The frames of a stack in order, innermost first; `user` marks those outside installed packages."""
    found = []
    for text in stack[:MOST_FRAMES]:
        frame = parse_frame(text)
        if frame is None:
            found.append({"text": text[:LONGEST], "file": "", "line": 0, "function": "", "user": False})
        else:
            found.append(
                {
                    "file": frame.file[:LONGEST],
                    "line": frame.line,
                    "function": frame.function[:LONGEST],
                    "text": frame.text[:LONGEST],
                    "user": not is_library(frame.file),
                }
            )
    return found


def excerpt_of(stack: list[str]) -> Optional[dict[str, Any]]:
    """The user's line with the lines around it. If there are none, `note` says why."""
    parsed = (parse_frame(text) for text in stack[:MOST_FRAMES])
    frame = next((one for one in parsed if one is not None and not is_library(one.file)), None)
    if frame is None:
        return None
    lines, note = _lines(frame)
    first = max(frame.line - AROUND, 1) if lines else frame.line
    shown = [line[:LONGEST] for line in lines or [frame.text]]
    return {"file": frame.file[:LONGEST], "line": frame.line, "first": first, "lines": shown, "note": note}


def _lines(frame: Frame) -> tuple[list[str], str]:
    path = Path(frame.file)
    if path.suffix != ".py" or not frame.text:
        return [], "unread"
    try:
        if path.resolve().suffix != ".py":
            return [], "unread"
        text = read_regular(path, limit=MOST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError, RuntimeError):  # the last for a loop of links
        return [], "missing"
    lines = text.splitlines()
    if not 1 <= frame.line <= len(lines) or lines[frame.line - 1].strip() != frame.text.strip():
        return [], "changed"
    return lines[max(frame.line - AROUND, 1) - 1 : frame.line + AROUND], ""
