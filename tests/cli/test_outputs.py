"""Where a report goes is checked before the work, in every verb: the input of these tests is not even a dump."""

from __future__ import annotations

from pathlib import Path

import pytest

from msprobe.cli import main

MISSING = "does not exist. Create it first"
IS_FILE = "is a file; give a directory"
IS_DIRECTORY = "is a directory; give the name of a file"
VERBS = [
    ("compare DIR DIR --xlsx DIR/no/report.xlsx", MISSING),
    ("compare DIR DIR --json DIR/no/rows.jsonl", MISSING),
    ("compare DIR DIR -o DIR/file", IS_FILE),
    ("run_ut -api_info DIR --html DIR/no/report.html", MISSING),
    ("run_ut -api_info DIR --html DIR", IS_DIRECTORY),
    ("run_ut -api_info DIR -o DIR/file", IS_FILE),
    ("api_precision_compare -npu DIR -gpu DIR -o DIR/file", IS_FILE),
    ("view DIR --export DIR/no/report.html", MISSING),
    ("view DIR DIR --export DIR", IS_DIRECTORY),
    ("convert -d DIR -out DIR/file", IS_FILE),
    ("convert -d DIR -out DIR/file/out", "DIR/file is not a directory"),
    ("watch export DIR --csv -o DIR/file", IS_FILE),
    ("compiled -o DIR/file DIR/train.py", IS_FILE),
]


@pytest.mark.parametrize(("words", "reason"), VERBS, ids=[words for words, _ in VERBS])
def test_a_place_that_cannot_be_written_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "train.py").write_text("raise AssertionError('the work has begun')")
    assert main([word.replace("DIR", str(tmp_path)) for word in words.split()]) == 2
    said = capsys.readouterr().err
    assert reason.replace("DIR", str(tmp_path)) in said
    assert said.count("\n") == 1
