"""Reads JSON of an untrusted dump. All readers open JSON files here, or they take a file apart as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

from msprobe.dump.untrusted.regular_files import read_regular


def read_json(path: Path, inside: Optional[Path] = None) -> Any:
    """The value in a file. Raises OSError, json.JSONDecodeError, or a ValueError whose text says what is wrong."""
    return parse_json(read_regular(path, inside))


def parse_json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except MemoryError:
        raise ValueError("there is not enough memory to read it; use a machine with more") from None
