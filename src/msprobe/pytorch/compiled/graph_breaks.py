"""The graph breaks of a compiled region, as dynamo has listed them in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from types import CodeType
from typing import Any, Optional

from msprobe.pytorch.compiled.switch import module_of

_known: dict[int, tuple[int, Any, list[str], Any]] = {}
"""By the id of a code: how many reasons there were and the last one (a reset of dynamo clears them), breaks, code."""


def graph_breaks(function: Any) -> list[str]:
    """`file:line: reason` of each break of a region; msprobe causes none."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    reasons = getattr(dynamo, "graph_break_reasons", None)
    if not reasons:
        return []
    code = _code_of(function)
    if code is None:
        return []
    known = _known.get(id(code))
    if known is None or known[0] != len(reasons) or known[1] is not reasons[-1]:
        known = _known[id(code)] = (len(reasons), reasons[-1], _list(reasons, code), code)
    return known[2]


def breaks_member(breaks: Sequence[str]) -> str:
    """The JSON member of a record of compiled code; "" without breaks."""
    return f'"graph_breaks": {json.dumps(breaks)}' if breaks else ""


def _code_of(function: Any) -> Optional[CodeType]:
    module = module_of(function)
    inner = getattr(getattr(function, "_orig_mod", module), "forward", function)
    code = getattr(inner, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _list(reasons: Any, code: CodeType) -> list[str]:
    lines = [line for _, _, line in code.co_lines() if line is not None] if hasattr(code, "co_lines") else []
    first, last = code.co_firstlineno, max(lines, default=code.co_firstlineno)
    found = []
    for reason in reasons:
        frames = list(reason.user_stack)
        if any(frame.filename == code.co_filename and first <= (frame.lineno or 0) <= last for frame in frames):
            text = reason.reason.strip().splitlines()[0]
            found.append(f"{frames[-1].filename}:{frames[-1].lineno}: {text}")
    return list(dict.fromkeys(found))
