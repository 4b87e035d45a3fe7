"""Counts in messages."""

from __future__ import annotations

from msprobe.dump import write_errors
from msprobe.dump.plural import count


def test_one_thing_and_several() -> None:
    assert [count(number, "step") for number in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    assert count(2, "record or file", "records or files") == "2 records or files"


def test_the_log_of_one_lost_record_is_read_back(tmp_path) -> None:
    for number, text in ((1, "1 record or file could"), (3, "3 records or files could")):
        (tmp_path / "dump_error_info.log").write_text(write_errors.entry(number))
        assert str(write_errors.trouble(tmp_path)).startswith(text)
