"""Reads support_wrap_ops.yaml. One error lists everything that is wrong with it.

The file has categories with lists of names, and under ``switched_off`` the same categories with names that are known
but not collected. To edit it, move a line from one list to the other.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from msprobe.dump.untrusted.regular_files import read_regular
from msprobe.dump.untrusted.yaml_files import load_all

SWITCHED_OFF = "switched_off"
_MAX_BYTES = 1 << 20


Lists = dict[str, list[str]]


class ApiListError(ValueError):
    """The list of APIs cannot be used; the message says what is wrong, where, and what was expected."""


def read_lists(path: Path, categories: Sequence[str]) -> tuple[Lists, Lists]:
    """The lists of names that are on and off; both have every one of `categories`."""
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise ApiListError(f"{path}: has {size} bytes, expected a list of names of at most {_MAX_BYTES}.")
        data = read_regular(path)
    except OSError as error:
        raise ApiListError(f"{path}: cannot be read ({error}).") from error
    on, off = _parse(path, data, tuple(categories))
    return {name: [*names] for name, names in on.items()}, {name: [*names] for name, names in off.items()}


@functools.lru_cache(maxsize=4)
def _parse(path: Path, data: bytes, categories: tuple[str, ...]) -> tuple[Lists, Lists]:
    """Every debugger reads the file; it is parsed again only if its content has changed."""
    try:
        documents = load_all(data)
        content = documents[0] if len(documents) == 1 else documents or None
    except UnicodeDecodeError as error:
        raise ApiListError(f"{path}: cannot be read ({error}).") from error
    except yaml.YAMLError as error:
        raise ApiListError(f"{path}: is not YAML ({' '.join(str(error).split())}).") from error
    if not isinstance(content, dict):
        raise ApiListError(f"{path}: expected categories with lists of names, found {_kind(content)}.")
    off = content.pop(SWITCHED_OFF, None) or {}
    if not isinstance(off, dict):
        raise ApiListError(f"{path}: {SWITCHED_OFF}: expected categories with lists, found {_kind(off)}.")
    problems: list[str] = []
    lists = _lists(content, categories, "", problems), _lists(off, categories, f"{SWITCHED_OFF}.", problems)
    problems += _doubles(*lists)
    if problems:
        raise ApiListError(f"{path}: " + "; ".join(problems) + ".")
    return lists


def _lists(content: dict[Any, Any], categories: Sequence[str], where: str, problems: list[str]) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {category: [] for category in categories}
    for category, names in content.items():
        if category not in lists:
            problems.append(f"{where}{category} is not a category (known: {', '.join(categories)}, {SWITCHED_OFF})")
        elif names is not None and not isinstance(names, list):
            problems.append(f"{where}{category}: expected a list of names, found {_kind(names)}")
        else:
            wrong = [name for name in names or [] if not isinstance(name, str) or not name]
            if wrong:
                problems.append(f"{where}{category}: {wrong[0]!r} is not a name (put it in quotes?)")
            lists[category] = [name for name in names or [] if isinstance(name, str) and name]
    return lists


def _doubles(on: dict[str, list[str]], off: dict[str, list[str]]) -> list[str]:
    found: list[str] = []
    for category in on:
        seen: set[str] = set()
        for name in on[category] + off[category]:
            if name in seen:
                found.append(f"{category}: {name} is listed twice; keep one of the lines")
            seen.add(name)
    return found


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__
