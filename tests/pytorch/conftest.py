"""The models and the collecting context next to the tests are modules of their own: make them importable.

Every test runs with MSPROBE_CHECK_CACHE=1: a remembered statistic that is stale becomes a fault of ours,
and `collecting` fails a test whose dump has one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from msprobe.collect import notices
from msprobe.pytorch import PrecisionDebugger


@pytest.fixture(autouse=True)
def one_debugger_a_test(monkeypatch):
    monkeypatch.setenv("MSPROBE_CHECK_CACHE", "1")
    notices.forget()
    yield
    if PrecisionDebugger._current is not None:
        PrecisionDebugger._current._lifecycle.close()
        PrecisionDebugger._current = None


@pytest.fixture
def logged(caplog):
    """The messages that msprobe has logged so far."""

    class LoggedMessages(list):
        def __call__(self, part):
            return [message for message in (r.getMessage() for r in caplog.records) if part in message]

    caplog.set_level("INFO", logger="msprobe")
    return LoggedMessages()
