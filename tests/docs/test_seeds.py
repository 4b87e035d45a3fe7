"""docs/seeds.md has one row for each section and each item of the seeds, and each row names a test that exists."""

from __future__ import annotations

import ast
import json
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = json.loads((Path(__file__).parent / "data" / "seed_sections.json").read_text(encoding="utf-8"))
ITEMS = json.loads((Path(__file__).parent / "data" / "seed_items.json").read_text(encoding="utf-8"))
STATES = ("works", "differs", "needs a device")


@cache
def tables() -> dict[str, dict[str, list[list[str]]]]:
    """For sections and for items, the rows of each document: name, state, note, test."""
    found: dict[str, dict[str, list[list[str]]]] = {"section": {}, "item": {}}
    number = kind = ""
    for line in (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            number = line[3:6]
        elif line.startswith(("| section |", "| item |")):
            kind = line.split()[1]
            found[kind][number] = []
        elif line.startswith("| selector |"):
            kind = line.split()[1]
            found[kind] = {"": []}
        elif line.startswith("| "):
            found[kind][number].append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def rows() -> dict[str, list[list[str]]]:
    """All rows of each document."""
    return {number: table + tables()["item"][number] for number, table in tables()["section"].items()}


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_each_section_has_one_row():
    assert {number: [row[0] for row in table] for number, table in tables()["section"].items()} == {
        number: document["sections"] for number, document in SECTIONS.items()
    }


def test_each_item_of_the_audit_has_one_row():
    assert {number: [row[0] for row in table] for number, table in tables()["item"].items()} == ITEMS


def test_the_page_counts_its_items():
    states = Counter(state for table in tables()["item"].values() for _, state, _, _ in table)
    said = (
        f"{states.total()} items: {states['works']} work, {states['differs']} differ, {states['needs a device']} need"
    )
    assert said in (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8")


def test_each_state_is_known_and_a_difference_has_its_reason():
    for table in rows().values():
        for section, state, note, _ in table:
            assert state in STATES, section
            assert note or state == "works", f"{section}: say how it differs, or what it needs"


def test_each_row_names_a_test_that_exists():
    for table in (*rows().values(), tables()["selector"][""]):
        for section, *_, test in table:
            path, _, name = test.strip("`").partition("::")
            assert name in functions_of(path), f"{section}: {test}"
