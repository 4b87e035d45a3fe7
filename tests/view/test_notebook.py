"""`msprobe.view(…)` in the output of a notebook cell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dumps import ranks_dump

import msprobe
from msprobe.dump.errors import DumpError


def test_the_page_is_in_the_cell_without_a_server(chromium: Any, tmp_path: Path) -> None:
    view = msprobe.view(ranks_dump(tmp_path / "t", 1, wrong_rank=0), ranks_dump(tmp_path / "g", 1))  # type: ignore[operator]
    assert repr(view).startswith("msprobe view: Functional.linear.2.forward")
    page = chromium.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.set_content(f"<title>notebook</title><div id=cell>{view._repr_html_()}</div>")
    assert page.locator("#cell iframe").bounding_box()["height"] == 802
    frame = page.frame_locator("#cell iframe")
    frame.locator("body[data-ready=yes]").wait_for()
    assert "Functional.linear.2.forward" in frame.locator(".sentence").inner_text()
    frame.locator("#rows .row").nth(2).click()
    frame.locator("#row_name").wait_for()
    frame.locator("#tab_trends").click()
    frame.locator("#heat").wait_for()
    assert faults == []
    assert page.title() == "notebook"
    page.close()


def test_importing_msprobe_does_not_import_the_view_and_a_wrong_path_is_one_sentence(tmp_path: Path) -> None:
    code = "import sys, msprobe; assert 'msprobe.view' not in sys.modules; msprobe.view; assert callable(msprobe.view)"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(DumpError, match="does not exist"):
        msprobe.view(tmp_path / "nothing")  # type: ignore[operator]
    with pytest.raises(AttributeError, match="no attribute 'vew'"):
        msprobe.vew  # noqa: B018
