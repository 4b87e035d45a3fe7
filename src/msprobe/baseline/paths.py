"""Paths in a baseline: relative to the project, so that a baseline says nothing about the machine of its author."""

from __future__ import annotations

import json
import re
from pathlib import Path

from msprobe.dump import layout

_INSTALLED = re.compile(r"File /[^,\n]*?/((?:site|dist)-packages/|lib/python3[^/,\n]*/)")
_PRIVATE = ("hostname", "directory", "platform", "time")


def shorten_paths(name: str, content: bytes, root: Path) -> bytes:
    """The content of one file of a dump, with shorter paths in its stacks and without private facts in its header."""
    if name == layout.STACK:
        return json.dumps(_shorten(json.loads(content), f"File {root}/"), separators=(",", ":")).encode()
    if name == layout.RUN:
        run = {key: value for key, value in json.loads(content).items() if key not in _PRIVATE}
        if isinstance(run.get("command"), list):
            run["command"] = [Path(str(word)).name for word in run["command"][:1]] + run["command"][1:]
        run["made"] = _shorten(run.get("made", {}), f"File {root}/")
        return json.dumps(run, separators=(",", ":")).encode()
    return content


def _shorten(value: object, project: str) -> object:
    if isinstance(value, dict):
        return {key: _shorten(one, project) for key, one in value.items()}
    if isinstance(value, list):
        return [_shorten(one, project) for one in value]
    if isinstance(value, str) and value.startswith("File /"):
        installed = _INSTALLED.sub(r"File /\1", value)
        return installed if installed != value else value.replace(project, "File ", 1)
    return value
