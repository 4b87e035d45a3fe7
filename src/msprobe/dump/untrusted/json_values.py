"""Checks values of an untrusted JSON file. An invalid value raises DumpError.

`where` begins the sentence: `a rank of mesh 0`.
"""

from __future__ import annotations

from typing import Any

from msprobe.dump.errors import DumpError

HEAD = ("task", "level", "framework", "dump_data_dir")
"""The names in the head of a dump: texts, or null."""
MOST = 1 << 20
"""The largest number and the longest list, unless the caller allows more."""


def as_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DumpError(f"{where} is {shown(value)}, not a JSON object.")
    return value


def as_list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise DumpError(f"{where} should be a list, not {shown(value)}.")
    if len(value) > MOST:
        raise DumpError(f"{where}: a list of {len(value)} is too long.")
    return value


def as_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise DumpError(f"{where} should be text, not {shown(value)}.")
    return value


def as_flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise DumpError(f"{where} should be true or false, not {shown(value)}.")
    return value


def as_whole(value: Any, where: str, least: int = 0, most: int = MOST) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise DumpError(f"{where} should be a whole number from {least} to {most}, not {shown(value)}.")
    return value


def clean_head(values: dict[str, Any]) -> dict[str, Any]:
    """The head of a dump. A damaged name becomes its text: the records can still be read."""
    return {
        key: shown(value) if key in HEAD and value is not None and not isinstance(value, str) else value
        for key, value in values.items()
    }


def shown(value: Any) -> str:
    """A value from a file, short enough for a message."""
    text = repr(value) if isinstance(value, (str, float, type(None))) else str(type(value).__name__)
    if isinstance(value, int) and abs(value) < 1 << 70:
        text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
