"""csv cells with text from a dump: a spreadsheet must not take them for formulas."""

from __future__ import annotations

from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def safe_cell(cell: Any) -> Any:
    """Puts an apostrophe before text that a spreadsheet would calculate; numbers stay unchanged."""
    if not isinstance(cell, str) or not cell.startswith(_FORMULA) or _is_number(cell):
        return cell
    return f"'{cell}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
