"""Rows of a comparison by filter, in pages: for `msprobe rows` and for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Optional

from msprobe.compare.result import Comparison, row_record
from msprobe.dump.errors import DumpError
from msprobe.dump.untrusted.regular_files import open_regular

FIELDS = ("id", "module", "call", "target", "golden", "step", "rank", "verdict", "role", "reason", "dtype")
_LONGEST_LINE = 16 << 20
_SLOT = re.compile(r"\.(input|output|parameters|parameters_grad)(\.|\Z)")


@dataclass(frozen=True)
class Page:
    """`total` rows match; `next` is the offset of the next page, None at the end."""

    rows: list[dict[str, Any]]
    total: int
    next: Optional[int]


def parse_where(words: Sequence[str]) -> dict[str, str]:
    """`module=blocks.1` → a filter. Raises DumpError for a word that is no filter."""
    found = {}
    for word in words:
        key, equal, value = word.partition("=")
        if not equal or key not in FIELDS:
            raise DumpError(f"--where takes FIELD=VALUE, not {word!r}; the fields are {', '.join(FIELDS)}.")
        found[key] = value
    return found


def records_of(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for unit, row in comparison.rows():
        yield row_record(unit, row)


def records_in(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file that `msprobe compare --json FILE` wrote."""
    try:
        with open_regular(file) as lines:
            while line := lines.readline(_LONGEST_LINE):
                record = json.loads(line)
                if isinstance(record, dict) and "verdict" in record and "target_item" in record:
                    yield record
    except OSError as error:
        raise DumpError(f"{file} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError):
        raise DumpError(f"{file} is not a file of `msprobe compare --json FILE`: a line is not JSON.") from None


def select(
    records: Iterable[dict[str, Any]], where: Mapping[str, str], verdicts: Sequence[str], limit: int, offset: int = 0
) -> Page:
    """One page of the rows that match every filter and have one of the verdicts (any, if none is given)."""
    found, total = [], 0
    for record in records:
        if verdicts and record["verdict"] not in verdicts:
            continue
        if not all(_matches(key, value, record) for key, value in where.items()):
            continue
        if offset <= total < offset + limit:
            found.append(record)
        total += 1
    return Page(found, total, offset + limit if total > offset + limit else None)


def _matches(key: str, wanted: str, record: Mapping[str, Any]) -> bool:
    value = _value(key, record)
    if value is None:
        return wanted in ("", "null", "None")
    text = str(value)
    if key in ("module", "call", "target", "golden", "id"):
        return fnmatchcase(text, wanted) if any(c in wanted for c in "*?[") else _has_parts(text, wanted)
    return text == wanted


def _value(key: str, record: Mapping[str, Any]) -> Any:
    if key == "dtype":
        item = record.get("target_item") or record.get("golden_item") or {}
        return str(item.get("dtype")).rpartition(".")[2]
    if key == "call":
        name = str(record.get("target") or record.get("golden"))
        return _SLOT.split(name, maxsplit=1)[0]
    return record.get(key)


def _has_parts(text: str, wanted: str) -> bool:
    """Whether the name has these dotted parts in a row: blocks.1 is in Module.blocks.1.norm, and not in blocks.10."""
    return f".{wanted}." in f".{text}."
