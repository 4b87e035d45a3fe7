"""Whatever a file holds, loading ends in settings or in ConfigError with at least one problem."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msprobe.config import ConfigError, Settings, load
from msprobe.config.errors import show
from msprobe.config.kinds import Numbers
from msprobe.config.schema import COMMON, FOREIGN, LEVELS, SECTIONS, TASKS

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 5),
    st.floats(),
    st.text(),
    st.text(alphabet="0123456789-", max_size=6),
    st.sampled_from([*TASKS, *LEVELS, "", "all", "true", "md5", "forward", "fix", "to_cpu", "cpu", "bin", "\ud800"]),
)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def members(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    key = st.sampled_from(names) | st.text(max_size=6)
    return st.dictionaries(key, ANYTHING, max_size=6)


SECTION_KEYS = sorted({key.name for keys in SECTIONS.values() for key in keys} | set(FOREIGN["*"]))
DOCUMENTS = st.builds(
    lambda top, sections: {"dump_path": "d", **top, **sections},
    members([key.name for key in COMMON] + list(FOREIGN[""])),
    st.dictionaries(st.sampled_from(list(SECTIONS)), members(SECTION_KEYS), max_size=4),
)
MODES = st.sampled_from([("pytorch", None), ("mindspore", None), ("mindspore", True), ("mindspore", False)])
RELAXED = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def settled(framework: str, path: object, **arguments: Any) -> None:
    try:
        result = load(framework, path, **arguments)  # type: ignore[arg-type]
    except ConfigError as error:
        refusal = error
    else:
        assert isinstance(result, Settings)
        assert result.dump_path.is_absolute()
        return
    assert refusal.problems
    assert len(str(refusal).encode("utf-8").split(b"\n")) == 1 + min(len(refusal.problems), 101)


@RELAXED
@given(document=ANYTHING | DOCUMENTS, mode=MODES)
def test_any_json_value_loads_or_is_refused_with_a_problem(
    tmp_path: Path, document: object, mode: tuple[str, bool | None]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    settled(mode[0], path, graph_mode=mode[1])


@RELAXED
@given(
    data=st.binary(max_size=80)
    | st.text(alphabet="{}[]\",:/#'\n 0123eE+-.truefalsn\ufeff", max_size=60).map(str.encode)
)
def test_any_bytes_load_or_are_refused_with_a_problem(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    settled("pytorch", path)


@RELAXED
@given(task=ANYTHING, level=ANYTHING, step=ANYTHING, dump_path=ANYTHING)
def test_any_argument_loads_or_is_refused_with_a_problem(task: Any, level: Any, step: Any, dump_path: Any) -> None:
    settled("pytorch", None, task=task, level=level, step=step, dump_path=dump_path)


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", "x" * 5000, b"\xff", 3.5])
def test_any_config_path_is_refused_with_a_problem(path: object) -> None:
    with pytest.raises(ConfigError):
        load("pytorch", path)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [object(), 10**5000, {1, 2}, b"x", float("inf")], ids=type)
def test_arguments_that_no_json_can_hold_are_refused_in_one_line(value: object) -> None:
    settled("pytorch", None, level=value, step=[value])
    assert "\n" not in show(value)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted)))
def test_ranges_mean_the_numbers_between_their_ends(spans: list[list[int]]) -> None:
    found = Numbers().parse([f"{first}-{last}" for first, last in spans], "step", [])
    assert found == {number for first, last in spans for number in range(first, last + 1)}
