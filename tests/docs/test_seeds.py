"""docs/seeds.md has one row for each section of the seeds, and each row names a test that exists."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = json.loads((Path(__file__).parent / "data" / "seed_sections.json").read_text(encoding="utf-8"))
STATES = ("works", "differs", "needs a device")


def rows() -> dict[str, list[list[str]]]:
    """The rows of each document: section, state, note, test."""
    found: dict[str, list[list[str]]] = {}
    for line in (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            table = found.setdefault(line[3:6], [])
        elif line.startswith("| ") and not line.startswith("| section"):
            table.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_each_section_has_one_row():
    assert {number: [row[0] for row in table] for number, table in rows().items()} == {
        number: document["sections"] for number, document in SECTIONS.items()
    }


def test_each_state_is_known_and_a_difference_has_its_reason():
    for table in rows().values():
        for section, state, note, _ in table:
            assert state in STATES, section
            assert note or state == "works", f"{section}: say how it differs, or what it needs"


def test_each_row_names_a_test_that_exists():
    for table in rows().values():
        for section, _, _, test in table:
            path, _, name = test.strip("`").partition("::")
            assert name in functions_of(path), f"{section}: {test}"
