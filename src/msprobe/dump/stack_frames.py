"""The frames of stack.json: parses a frame, and finds the line of the user's own code.

msprobe leaves its own frames out of a stack. Other tools do not, so a reader must recognise frames of a debugger and of
installed packages. A path belongs to a debugger only if the package itself is there: a clone of the repository is also
called `msprobe`, and users keep their scripts in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Optional

_FRAME = re.compile(
    r"\s*File (?P<file>.+?), line (?P<line>\d+), in (?P<function>[^,\n]*)(?:, ?\n? ?(?P<text>.*))?", re.DOTALL
)
_INSTALLED = re.compile(r"(^|/)(site-packages|dist-packages)/|/lib/python3[^/]*/")
_PACKAGE = Path(__file__).resolve().parents[1]
_OTHER_TOOL = "/accuracy_tools/msprobe/"  # the source tree of mindstudio-probe


class Frame(NamedTuple):
    file: str
    line: int
    function: str
    text: str  # the source line, if it was recorded


def frame_text(file: str, line: int, function: str, text: str) -> str:
    """One entry of stack.json."""
    return f"File {file}, line {line}, in {function}, \n {text}"


def parse_frame(frame: str) -> Optional[Frame]:
    """Parses one entry of stack.json; None if it is not a frame."""
    found = _FRAME.match(frame)
    if found is None or len(found["line"]) > 18:
        return None
    return Frame(found["file"], int(found["line"]), found["function"].strip(), (found["text"] or "").strip())


def user_frame(frames: Iterable[str]) -> Optional[Frame]:
    """The innermost frame outside of installed packages and of the debugger; None if there is none."""
    parsed = (parse_frame(frame) for frame in frames)
    return next((frame for frame in parsed if frame is not None and not is_library(frame.file)), None)


def source_line(frames: Sequence[str]) -> Optional[str]:
    """`file:line (source)` of the user's frame, or of the innermost frame if no frame is the user's."""
    frame = user_frame(frames) or (parse_frame(frames[0]) if frames else None)
    if frame is None:
        return None
    return f"{frame.file}:{frame.line}" + (f" ({frame.text})" if frame.text else "")


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether a file belongs to Python, to an installed package or to a debugger."""
    path = file.replace("\\", "/")
    return path.startswith("<") or _INSTALLED.search(path) is not None or is_debugger(path)


def is_debugger(path: str) -> bool:
    if path.startswith(f"{_PACKAGE.as_posix()}/") or _OTHER_TOOL in path:
        return True
    # A copy of the package elsewhere: a file that this version also has, or, in a source tree, one of its folders.
    above, found, rest = path.rpartition("/msprobe/")
    parts = rest.split("/")
    if not found or len(parts) < 2 or ".." in parts or "\0" in rest:
        return False
    own = _PACKAGE.joinpath(*parts)
    return own.is_file() or (above.endswith("/src") and own.parent.is_dir())


def stacks_of(value: dict[str, Any]) -> dict[str, list[str]]:
    """The frames by name, from `{"0": [[names], [frames]]}` or the oldest form, `{name: [frames]}`. Damaged entries
    are left out."""
    found: dict[str, list[str]] = {}
    for key, entry in value.items():
        if not isinstance(entry, list):
            continue
        if len(entry) == 2 and all(isinstance(part, list) for part in entry):
            frames = frames_of(entry[1])
            found.update((name, frames) for name in entry[0] if isinstance(name, str))
        else:
            found[key] = frames_of(entry)
    return found


def frames_of(value: Any) -> list[str]:
    """The frames of one stack; entries that are not text are left out."""
    return [frame for frame in value if isinstance(frame, str)] if isinstance(value, list) else []
