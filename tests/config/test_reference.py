"""docs/config.md says what the table of keys says: every key, its default, its words, where it acts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from msprobe.config import ConfigError, load
from msprobe.config.kinds import Choice
from msprobe.config.schema import COMMON, FOREIGN, FOREIGN_TASKS, LEVELS, MATRIX, MODES, SECTIONS, Key, name_modes

TEXT = (Path(__file__).parents[2] / "docs" / "config.md").read_text(encoding="utf-8")


def rows(heading: str) -> dict[str, list[str]]:
    """The table under a heading: first cell, without its backquotes, to the other cells."""
    part = TEXT.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in part.split("\n") if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {first.strip("| `"): rest for first, *rest in cells}


def acts(key: Key) -> str:
    if key.switch:
        return f"`{key.switch}`"
    places = name_modes(key.modes) if key.modes != MODES else ""
    levels = f"level {', '.join(key.levels)}" if key.levels != LEVELS else ""
    without = [f"not in {mode} at {level}" for mode, level in key.without]
    return ", ".join(part for part in (places, levels, *without) if part) or "everywhere"


TABLES = [("Common keys", COMMON), *((f"Section `{task}`", keys) for task, keys in SECTIONS.items())]


@pytest.mark.parametrize(("heading", "keys"), TABLES, ids=[heading for heading, _ in TABLES])
def test_the_reference_has_every_key_with_its_default_and_where_it_acts(heading: str, keys: tuple[Key, ...]) -> None:
    table = rows(heading)
    assert list(table) == [key.name for key in keys]
    for key in keys:
        allowed, default, where, _ = table[key.name]
        assert default == ("none" if key.default is None else f"`{json.dumps(key.default)}`"), key.name
        assert where == acts(key), key.name
        if isinstance(key.kind, Choice):
            assert allowed == ", ".join(f"`{word}`" for word in key.kind.words), key.name


def test_the_reference_has_the_matrix_of_tasks_and_levels() -> None:
    table = rows("Which task runs at which level")
    assert list(table) == list(SECTIONS)
    for task, cells in table.items():
        assert cells == [", ".join(MATRIX[mode].get(task, ())) or "no" for mode in MODES]


def test_the_reference_has_the_keys_of_other_tools_and_their_reasons() -> None:
    table = rows("Keys of mindstudio-probe that msprobe ignores")
    expected = {name: ["top", reason] for name, reason in FOREIGN[""].items()}
    expected |= {name: ["a section", reason] for name, reason in FOREIGN["*"].items()}
    assert table == expected


def test_the_reference_has_the_tasks_of_other_tools_and_their_remedies() -> None:
    table = rows("Tasks of mindstudio-probe that msprobe refuses")
    assert table == {task: [remedy] for task, remedy in FOREIGN_TASKS}


def test_the_example_and_the_error_of_the_reference_are_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = json.loads(TEXT.split("```json\n", 1)[1].split("```", 1)[0])
    Path("config.json").write_text(json.dumps(example))
    assert load("pytorch", "config.json").step == frozenset([0, 5, 6, 7, 8])
    Path("config.json").write_text(
        '{"dump_path": "d", "level": "l1", "step": [-1], "statistics": {"sumary_mode": "md5"}}'
    )
    with pytest.raises(ConfigError) as caught:
        load("pytorch", "config.json")
    assert str(caught.value) in TEXT
