"""Paths in a baseline: relative to the project, so that a baseline says nothing about the machine of its author."""

from __future__ import annotations

import json
import re
from pathlib import Path

from msprobe.dump import layout

_INSTALLED = re.compile(r"^(File )?/[^,\n]*?/((?:site|dist)-packages/|lib/python3[^/,\n]*/)")
_PRIVATE = ("hostname", "directory", "platform", "time")


def shorten_paths(name: str, content: bytes, root: Path) -> bytes:
    """The content of one file of a dump, with shorter paths of source files and without private facts in its header."""
    if name in (layout.STACK, layout.TRAINING, layout.FLOW):
        return json.dumps(_shorten(json.loads(content), root), separators=(",", ":")).encode()
    if name == layout.RUN:
        run = {key: value for key, value in json.loads(content).items() if key not in _PRIVATE}
        if isinstance(run.get("command"), list):
            run["command"] = [Path(str(word)).name for word in run["command"][:1]] + run["command"][1:]
        run["made"] = _shorten(run.get("made", {}), root)
        return json.dumps(run, separators=(",", ":")).encode()
    return content


def _shorten(value: object, root: Path, key: str = "") -> object:
    """`key`: the name of the member that `value` is. Under "file" a path stands alone, elsewhere after "File "."""
    if isinstance(value, dict):
        return {name: _shorten(one, root, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_shorten(one, root) for one in value]
    if isinstance(value, str) and value.startswith("/" if key == "file" else "File /"):
        installed = _INSTALLED.sub(r"\1\2", value)
        return installed if installed != value else value.replace(f"{root}/", "", 1)
    return value
