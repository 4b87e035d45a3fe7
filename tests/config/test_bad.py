"""Bad configurations, each with the exact message that its author gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from msprobe.config import ConfigError, load
from msprobe.config.read import _syntax

TASKS = '"statistics", "tensor", "structure", "overflow_check", "free_benchmark", "run_ut"'
LEVELS = '"L0", "L1", "L2", "mix", "debug"'
NUMBER = 'allowed: an integer from 0 to 2147483647, "n" or "a-b"'

# Every bad value and combination, with its messages: data, because exact messages are long.
BAD = json.loads((Path(__file__).parent / "data" / "bad.json").read_text(encoding="utf-8"))

TEXTS: list[tuple[str, str]] = [
    ('\ufeff{"task": "tensor"}', "line 1, column 1: a byte order mark; save the file as UTF-8 without one"),
    ('{\n  // all ranks\n  "rank": []\n}', "line 2, column 3: a comment; JSON has no comments; remove it"),
    ('{"rank": [] # all\n}', "line 1, column 13: a comment; JSON has no comments; remove it"),
    ('{"rank": /* all */ []}', "line 1, column 10: a comment; JSON has no comments; remove it"),
    ("{'task': 'tensor'}", 'line 1, column 2: a single quote; use double quotes (")'),
    ('{"async_dump": True}', "line 1, column 16: True; write true"),
    ('{"rank": None}', "line 1, column 10: None; null is not allowed; leave the key out"),
    (
        '{"task": "tensor"',
        "line 1, column 18: the file ends too early; a closing bracket or quote is missing",
    ),
    (
        '{"task" "tensor"}',
        "line 1, column 9: not JSON (Expecting ':' delimiter); correct it there or just before",
    ),
    ("", "line 1, column 1: the file is empty; write at least {}, or give no file"),
    (
        '{"dump_path": "d", "task": "tensor", "task": "statistics"}',
        "task: found more than once; allowed: each key once; keep only the one you want",
    ),
    (
        '{"dump_path": "d", "tensor": {"list": [], "list": ["relu"]}}',
        "tensor.list: found more than once; allowed: each key once; keep only the one you want",
    ),
    ('{"dump_path": "d", "rank": [NaN]}', f"rank[0]: found NaN; {NUMBER}"),
    ('{"dump_path": "d", "rank": [1e999]}', f"rank[0]: found Infinity; {NUMBER}"),
    ("[" * 200_000, "file: nested too deeply; allowed: two levels of objects"),
]


def problems(framework: object, path: object, **arguments: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(framework, path, **arguments)  # type: ignore[arg-type]
    listed = str(caught.value).split("\n")[1:]
    assert listed == [f"  - {problem}" for problem in caught.value.problems]
    return [str(problem) for problem in caught.value.problems]


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_there_are_more_than_forty_five() -> None:
    assert len(BAD) + len(TEXTS) > 45


@pytest.mark.parametrize("case", BAD, ids=[json.dumps(case["config"])[:70] for case in BAD])
def test_a_bad_configuration_gives_exactly_its_messages(case: dict[str, object], tmp_path: Path) -> None:
    path = write(tmp_path / "config.json", case["config"])
    assert problems(case["framework"], path, graph_mode=case["graph_mode"]) == case["problems"]


@pytest.mark.parametrize(("text", "expected"), TEXTS, ids=[text[:40] for text, _ in TEXTS])
def test_bad_json_gives_line_and_column(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    assert problems("pytorch", path) == [expected]


def test_a_missing_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = f"file: this file does not exist; check the path (working directory: {tmp_path})"
    assert problems("pytorch", "nowhere.json") == [expected]


def test_a_directory_is_an_error(tmp_path: Path) -> None:
    assert problems("pytorch", tmp_path) == ["file: this is a directory; name the config.json in it"]


def test_a_device_is_not_read() -> None:
    assert problems("pytorch", "/dev/zero") == ["file: this is not a regular file; name a JSON file"]


def test_a_file_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes('{\n"dump_path": "数据"}'.encode("gbk"))
    expected = "file: byte 16 (line 2) is not UTF-8; save the file as UTF-8 without a byte order mark"
    assert problems("pytorch", path) == [expected]


def test_a_huge_file_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b" " * (4 * 1024 * 1024 + 1))
    expected = "file: the file is larger than 4194304 bytes; this is not a configuration file; check the path"
    assert problems("pytorch", path) == [expected]


def test_a_path_of_the_wrong_type_is_an_error() -> None:
    assert problems("pytorch", 7) == ["argument config_path: found 7; allowed: a path"]


def test_bad_arguments_give_the_messages_of_bad_keys() -> None:
    assert problems("pytorch", None, task="tensr", level="L9", step=[0, "x"], dump_path=3) == [
        f'argument task: found "tensr"; allowed: {TASKS}; did you mean "tensor"?',
        "argument dump_path: found 3; allowed: a path as text",
        f'argument level: found "L9"; allowed: {LEVELS}',
        f'argument step[1]: found "x"; {NUMBER}',
    ]


def test_a_combination_with_an_argument_names_the_argument(tmp_path: Path) -> None:
    path = write(tmp_path / "config.json", {"dump_path": "d", "task": "free_benchmark", "level": "L1"})
    expected = 'argument level: found "L2" with task "free_benchmark" on PyTorch; allowed: "L1"'
    assert problems("pytorch", path, level="L2") == [expected]


def test_one_error_lists_every_problem_of_a_file(tmp_path: Path) -> None:
    value = {
        "dump_path": "d",
        "task": "tensor",
        "level": "L3",
        "rank": "all",
        "sed": 1,
        "tensor": {"data_mode": ["all", "input"], "file_format": "pt", "lst": []},
        "statistics": {"summary_mode": "crc"},
    }
    paths = [problem.split(":")[0] for problem in problems("pytorch", write(tmp_path / "config.json", value))]
    assert paths == [
        "level",
        "rank",
        "sed",
        "tensor.data_mode",
        "tensor.file_format",
        "tensor.lst",
        "statistics.summary_mode",
    ]


def test_thousands_of_problems_give_a_message_that_can_be_read(tmp_path: Path) -> None:
    path = write(tmp_path / "config.json", {"dump_path": "d", "rank": [-1] * 5000})
    with pytest.raises(ConfigError) as caught:
        load("pytorch", path)
    assert len(caught.value.problems) == 5000
    assert str(caught.value).split("\n")[-1] == "  - and 4900 more"


def test_the_message_names_the_file_and_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "config.json", {"dump_path": "d", "level": "L9", "task": "x"})
    with pytest.raises(ConfigError) as caught:
        load("pytorch", path)
    assert str(caught.value).split("\n")[0] == f"{path}: 2 problems"


def test_an_unknown_framework_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="jax"):
        load("jax")
    with pytest.raises(ValueError, match="graph mode"):
        load("pytorch", graph_mode=True)


def test_a_trailing_comma_gives_the_same_message_in_newer_pythons() -> None:
    text = '{"rank": [1, ]}'
    newer = json.JSONDecodeError("Illegal trailing comma before end of array", text, text.index(",", 5))
    older = json.JSONDecodeError("Expecting value", text, text.index("]"))
    assert (
        str(_syntax(text, newer))
        == str(_syntax(text, older))
        == "line 1, column 12: a comma after the last item; remove it"
    )


def test_relative_paths_in_a_deleted_working_directory_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "config.json", {"dump_path": "d"})
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    expected = 'dump_path: found "d"; the working directory no longer exists; use an absolute path'
    assert expected in problems("pytorch", path)
    assert problems("pytorch", "c.json") == [
        "file: this file does not exist; check the path (working directory: it no longer exists)"
    ]


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "c.json").write_text('{"task": "statistics", "dump_path": "~/dump"}')
    assert load("pytorch", "~/c.json").dump_path == tmp_path / "dump"
    with pytest.raises(ConfigError, match="cannot expand ~: unknown user"):
        load("pytorch", task="statistics", dump_path="~nobody-of-this-name/dump")


def test_a_problem_of_an_argument_does_not_name_the_packaged_file() -> None:
    with pytest.raises(ConfigError) as caught:
        load("pytorch", task="tensr", dump_path="d")
    assert str(caught.value).startswith("PrecisionDebugger(…): 1 problem")
    assert "config.json" not in str(caught.value)


@pytest.mark.parametrize("path", ["C:\\dump", "d:/dump", "\\\\host\\share"])
def test_a_path_of_windows_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="this is a path of Windows"):
        load("pytorch", dump_path=path)


@pytest.mark.parametrize("text", ['{"step": [1, 2,], "dump_path": "d"}', '{"dump_path": "d", "task": "tensor",\n}'])
def test_a_comma_after_the_last_item_is_a_warning(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    (warning,) = load("pytorch", path).warnings
    assert "a comma after the last item is ignored; remove it" in warning
