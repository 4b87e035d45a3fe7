"""What `--json` prints: one strict JSON object that names its schema."""

from __future__ import annotations

import json
from typing import Any, Optional

from msprobe.dump.strict_json import strict
from msprobe.schemas import named


def print_json(name: str, content: dict[str, Any], indent: Optional[int] = None) -> None:
    """`name` is that of a schema in `msprobe.schemas`."""
    print(json_text(name, content, indent), flush=True)


def json_text(name: str, content: dict[str, Any], indent: Optional[int] = None) -> str:
    return json.dumps(named(name, strict(content)), indent=indent, allow_nan=False)
