"""Cells of a csv file whose text comes from a dump: a spreadsheet must not take one for a formula."""

from __future__ import annotations

from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def safe_cell(cell: Any) -> Any:
    """Text that a spreadsheet would calculate gets an apostrophe in front; numbers stay as they are."""
    if not isinstance(cell, str) or not cell.startswith(_FORMULA) or _is_number(cell):
        return cell
    return f"'{cell}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
