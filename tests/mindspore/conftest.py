"""The models and the collecting context next to the tests are modules of their own: make them importable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import mindspore as ms

from msprobe.collect import notices
from msprobe.mindspore import PrecisionDebugger


@pytest.fixture(autouse=True)
def one_debugger_a_test(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MindSpore writes what it could not compile to the working directory
    ms.set_context(mode=ms.PYNATIVE_MODE)
    notices.forget()
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)  # for whoever comes next in this process
    if PrecisionDebugger._current is not None:
        PrecisionDebugger._current._lifecycle.close()
        PrecisionDebugger._current = None


@pytest.fixture
def logged(caplog):
    """`logged(part)`: the messages that msprobe has logged so far and that contain `part`."""
    caplog.set_level("INFO", logger="msprobe")
    return lambda part: [r.getMessage() for r in caplog.records if part in r.getMessage()]
