"""The text of stacks."""

from __future__ import annotations

import gc
import linecache

from msprobe.collect.records.stacks import render_positions


def test_a_script_that_lists_all_objects_meanwhile_disturbs_nothing(monkeypatch):
    """gc.get_objects() in a different thread also takes what the writer is making."""
    kept = []

    def read_slowly(filename: str) -> list[str]:
        kept.append(gc.get_objects())
        return ["x = 1\n"] * 2

    monkeypatch.setattr(linecache, "getlines", read_slowly)
    rendered = render_positions.__wrapped__((("train.py", 1, "main"), ("train.py", 2, "run")))
    assert rendered == ("File train.py, line 1, in main, \n x = 1", "File train.py, line 2, in run, \n x = 1")
