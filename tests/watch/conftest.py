"""Each test begins with nothing logged, and leaves no debugger behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from msprobe.collect import notices


@pytest.fixture(autouse=True)
def fresh_notices():
    """Tests of other folders, in the same process, may have left a debugger: an alarm could not start a second one."""
    from msprobe.pytorch import PrecisionDebugger

    notices.forget()
    if PrecisionDebugger._current is not None:
        PrecisionDebugger._current._lifecycle.close()
        PrecisionDebugger._current = None


@pytest.fixture
def logged(caplog):
    """The messages of msprobe that hold a text."""
    caplog.set_level("INFO", logger="msprobe")
    return lambda part: [record.getMessage() for record in caplog.records if part in record.getMessage()]


@pytest.fixture(autouse=True)
def one_thread():
    """Small models on a busy machine: threads that wait for each other cost more than they save."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
