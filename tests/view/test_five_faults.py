"""As a new user would: five planted faults, from the command to the guilty line in at most three actions each.

docs/view.md lists the same actions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import planted
import pytest
from dumps import ranks_dump
from polling import until

Open = Callable[..., Any]


def see_line(page: Any, line: str, marked: bool = True) -> None:
    """The guilty line is on screen: marked, or among the lines around the marked one."""
    lines = ".excerpt .here" if marked else ".excerpt span"
    texts = f"[...document.querySelectorAll('{lines}')].filter(e => e.offsetHeight).map(e => e.textContent)"
    until(page, f"{texts}.some(text => text.includes({line!r}))")


# fault, its line, whether the page marks that line; all are on screen without an action
FAULTS = [
    ("wrong eps", "self.attn(self.ln1(x))", True),
    ("missing scale", "scores * (1.0 / math.sqrt", True),
    ("wrong mask", "mask = torch.ones(length, length", True),
    ("wrong softmax dim", "F.softmax(scores", True),
    ("wrong backward", "WrongBackward.apply(out)", False),
]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted.run("transformer", tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize(("fault", "line", "marked"), FAULTS, ids=[one[0] for one in FAULTS])
def test_a_fault_in_the_model(
    open_view: Open, golden: Path, tmp_path: Path, fault: str, line: str, marked: bool
) -> None:
    page = open_view(planted.run("transformer", tmp_path, fault), golden).page
    see_line(page, line, marked)


def test_a_nan_in_a_single_dump(open_view: Open, tmp_path: Path) -> None:
    page = open_view(planted.run("transformer", tmp_path, "nan source")).page
    see_line(page, "torch.log(")
    assert "first call that produced NaN" in page.inner_text(".sentence")


def test_the_guilty_rank(open_view: Open, tmp_path: Path) -> None:
    page = open_view(ranks_dump(tmp_path / "t", wrong_rank=2), ranks_dump(tmp_path / "g")).page
    page.wait_for_selector("#answer dl")
    assert "rank 2" in page.inner_text("#answer dl")
    page.keyboard.press("4")
    assert page.inner_text("#odd") == "odd rank: 2"


def test_nothing_is_blamed_where_nothing_is_wrong(open_view: Open, golden: Path, tmp_path: Path) -> None:
    page = open_view(planted.run("transformer", tmp_path), golden).page
    assert "Same" in page.inner_text(".sentence")
    found: Optional[Any] = page.query_selector("#answer .excerpt")
    assert found is None
