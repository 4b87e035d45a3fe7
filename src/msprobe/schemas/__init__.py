"""The JSON Schemas of what `--json` prints: one file per schema, `msprobe schema NAME` prints it.

A result names its schema: `"schema": "msprobe/compare/1"`. Within a version members are only added. The number grows
if a member is removed, or gets a different meaning or type.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
VERSION = 1


def schema_names() -> list[str]:
    return sorted(file.stem for file in _HERE.glob("*.json"))


def schema(name: str) -> dict[str, Any]:
    """Raises KeyError for an unknown name."""
    if name not in schema_names():
        raise KeyError(name)
    found: dict[str, Any] = json.loads((_HERE / f"{name}.json").read_bytes())
    return found


def named(name: str, content: dict[str, Any]) -> dict[str, Any]:
    """The content with the name of its schema as the first member."""
    return {"schema": f"msprobe/{name}/{VERSION}", **content}
