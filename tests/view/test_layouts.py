"""Runs in different parallel layouts on the page: ranks as columns, collectives between them, the odd rank marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest
from layout_dumps import write_run

from msprobe.view.material import open_material
from msprobe.view.session import Contents

Open = Callable[..., Any]


@pytest.fixture
def dumps(tmp_path: Path) -> tuple[Path, Path]:
    return write_run(tmp_path / "t", 2, 2, fault="one rank"), write_run(tmp_path / "g")


def test_the_ranks_of_a_joined_row_are_columns(open_view: Open, dumps: tuple[Path, Path]) -> None:
    opened = open_view(*dumps)
    page = opened.page
    page.wait_for_selector("#answer dl")
    assert "rank 3" in page.inner_text("#answer dl")
    page.keyboard.press("Enter")
    page.wait_for_selector("#shards")
    heads = [one.inner_text() for one in page.query_selector_all("#shards thead th")]
    assert heads == ["rank 0", "rank 1", "rank 2", "rank 3 ◆"]
    norms = page.query_selector_all("#shards tbody tr:last-child td")
    assert len({one.inner_text() for one in norms}) == 4
    page.keyboard.press("4")
    assert page.inner_text("#odd") == "odd rank: 3"
    links = [one.inner_text() for one in page.query_selector_all("#collective_list button")]
    assert links
    assert all("all_reduce" in link and "ranks 0, 1, 2, 3" in link for link in links)
    assert opened.faults == []


def test_a_clean_layout_has_columns_and_no_odd_rank(open_view: Open, tmp_path: Path) -> None:
    page = open_view(write_run(tmp_path / "t", 1, 2), write_run(tmp_path / "g")).page
    page.keyboard.press("4")
    page.wait_for_selector("#collective_list button")
    assert page.inner_text("#odd") == ""


def test_each_call_has_the_ranks_that_made_it(dumps: tuple[Path, Path]) -> None:
    table = Contents(open_material(*dumps)).table
    assert table.head()["units"] == [{"label": "step0", "step": 0, "rank": None, "ranks": [0, 1, 2, 3]}]
    texts = table.head()["texts"]
    assert {texts[number] for number in table._calls["ranks"]} == {"0 1 2 3"}
