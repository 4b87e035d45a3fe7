"""The HTML page of a check, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser import Page

from msprobe.check.core.precheck import Checked, Report
from msprobe.report.check_page import write_page

HOSTILE = "Torch.</script><img src=x onerror=document.title='owned'>.0"


def report() -> Report:
    checked = [Checked("rank0", f"Torch.relu.{number}", "pass", "pass", "") for number in range(3000)]
    checked.insert(1500, Checked("rank0", "Functional.gelu.0", "error", "SKIP", "a different direction: cosine 0.5"))
    checked.insert(10, Checked("rank0", "Torch.mm.0", "pass", "warning", "0.2% of the elements are off"))
    checked.append(Checked("rank0", HOSTILE, "error", "SKIP", "a name from a file\u2028 <b>bold</b>"))
    checked.append(Checked("rank0", "Torch.rand.0", "SKIP", "SKIP", "it draws random numbers"))
    return Report(checked)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "out.html"
    write_page(report(), path)
    return path


def shown(page: Page) -> list[Any]:
    """The first cell of each row."""
    found: list[Any] = page.run("[...document.querySelectorAll('#rows tr')].map(row => row.cells[0].textContent)")
    return found


def press(page: Page, word: str) -> None:
    page.run(f"[...document.querySelectorAll('#filters button')].find(b => b.textContent.startsWith('{word}')).click()")


def search(page: Page, text: str) -> None:
    page.run(f"(() => {{ const s = document.getElementById('search'); s.value = '{text}'; s.oninput(); }})()")


def test_it_opens_with_what_is_wrong_and_finds_the_rest(written: Path) -> None:
    with Page(written) as page:
        summary = page.run("document.getElementById('summary').textContent")
        assert summary == "3004 calls: 2 error, 1 warning, 3000 pass, 1 not checked"
        assert shown(page) == ["Functional.gelu.0", HOSTILE, "Torch.mm.0"]
        assert page.run("getComputedStyle(document.querySelector('#rows td.error')).fontWeight") == "600"

        search(page, "COSINE")
        assert shown(page) == ["Functional.gelu.0"]
        search(page, "")
        press(page, "pass")
        assert len(shown(page)) == 2000
        assert page.run("document.getElementById('more').textContent") == "… and 1003 more: search for a name."
        search(page, "relu.2999")
        assert shown(page) == ["Torch.relu.2999"]
        search(page, "")
        press(page, "pass")
        press(page, "error")
        press(page, "not checked")
        assert shown(page) == ["Torch.mm.0", "Torch.rand.0"]
        assert page.faults == []


def test_names_and_reasons_stay_text(written: Path) -> None:
    with Page(written) as page:
        search(page, "a name from a file")
        assert shown(page) == [HOSTILE]
        assert page.run("document.querySelectorAll('img, b').length") == 0
        assert page.run("document.title") == "msprobe run_ut"
        assert page.faults == []


def test_a_check_without_faults_shows_everything(tmp_path: Path) -> None:
    write_page(Report([Checked("rank0", "Torch.relu.0", "pass", "pass", "")]), tmp_path / "out.html")
    with Page(tmp_path / "out.html") as page:
        assert shown(page) == ["Torch.relu.0"]
        assert page.faults == []
