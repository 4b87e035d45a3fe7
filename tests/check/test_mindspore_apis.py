"""Every API of the MindSpore support list that can be called from generated inputs runs; the docs list the others."""

from __future__ import annotations

from pathlib import Path

import mindspore
import pytest
from ms_survey import PAGE, survey


def test_the_page_of_apis_is_current(tmp_path: Path) -> None:
    written = PAGE.read_text()
    if f"MindSpore {mindspore.__version__}," not in written:
        pytest.skip(f"the page was written with another version than MindSpore {mindspore.__version__}")
    assert survey(tmp_path) == written, "python tests/check/ms_survey.py write"
