"""Where a node of a captured graph comes from: its code, its source line and its module, from the graph's metadata."""

from __future__ import annotations

import os
import re
from typing import Any

import torch
import torch.fx

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)(?:\n\s*(?P<code>[^\n]*))?')
_TORCH = os.path.dirname(torch.__file__) + os.sep  # noqa: PTH120 a text, compared with texts
_ROOT = re.compile(r"^[LG]\['[^']*'\]\.?")


def positions(node: torch.fx.Node) -> list[tuple[str, int, str, str]]:
    """The frames of the code that a node comes from, innermost first: file, line, function, text."""
    found = [
        (match["file"], int(match["line"]), match["function"], (match["code"] or "").strip())
        for match in _FRAME.finditer(node.meta.get("stack_trace") or "")
    ]
    return found[::-1]


def source_line(node: torch.fx.Node) -> str:
    """The line of the user's code. Frames inside torch are left out, if there are others."""
    frames = positions(node)
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)] or frames
    if not own:
        return ""
    file, line, function, text = own[0]
    return f"{file}:{line} in {function}: {text}"


def module_path(node: torch.fx.Node) -> str:
    """The path of the innermost module, as the model names it; "" outside of modules."""
    stack = node.meta.get("nn_module_stack") or {}
    return relative_path(str(list(stack.values())[-1][0])) if stack else ""


def relative_path(text: str) -> str:
    """`L['self'].layers.0` is `layers.0` of the region."""
    return _ROOT.sub("", text).replace("_modules.", "").replace("._orig_mod", "")


def code_of(node: torch.fx.Node) -> str:
    """The node as a line of code, with the names of the graph."""
    args = [_text(arg) for arg in node.args] + [f"{key}={_text(arg)}" for key, arg in node.kwargs.items()]
    if node.op == "call_method":
        return f"{node.name} = {args[0]}.{node.target}({', '.join(args[1:])})"
    return f"{node.name} = {torch.fx.node._get_qualified_name(node.target)}({', '.join(args)})"


def _text(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
