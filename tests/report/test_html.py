"""The HTML report in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import Page
from written import call, model_data, tensor, write_dump

from msprobe.compare import compare
from msprobe.report.html import write_html


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("large")
    write_dump(root / "golden", *model_data(100_000))
    stacks = {"0": [["Functional.relu.4000.forward"], ["File train.py, line 7, in forward, \n return F.relu(x)"]]}
    write_dump(root / "target", *model_data(100_000, drift_from=12_001), stacks)
    write_html(compare(root / "target", root / "golden"), root / "report.html")
    return root / "report.html"


def test_a_hundred_thousand_rows_open_search_filter_and_scroll(large: Path) -> None:
    with Page(large) as page:
        assert page.run("document.getElementById('shown').textContent") == "100000 of 100000 rows"
        assert "Functional.relu.4000.forward" in page.run("document.getElementById('origin').textContent")
        assert page.run("document.querySelectorAll('#rows .row').length") < 100
        assert "return F.relu(x)" in page.run("document.getElementById('detail').textContent")
        assert "introduced" in page.run("document.querySelector('#rows .row.picked').textContent")

        page.run("search.value = 'linear.77.forward.output'; search.dispatchEvent(new Event('input'))")
        assert page.run("document.getElementById('shown').textContent") == "1 of 100000 rows"
        page.run("search.value = ''; search.dispatchEvent(new Event('input'))")

        page.run(
            "for (const b of document.querySelectorAll('#filters input')) if (b.dataset.verdict === 'pass') b.click()"
        )
        shown = int(page.run("document.getElementById('shown').textContent").split()[0])
        assert 0 < shown < 60_000

        scrolled = page.run(
            "$('scroll').scrollTop = 20000 * 24; new Promise(done => requestAnimationFrame(() =>"
            " requestAnimationFrame(() => done(document.querySelectorAll('#rows .row')[15].style.top))))"
        )
        assert abs(int(scrolled.removesuffix("px")) - 20_000 * 24) < 24 * 40
        seconds = page.run(
            "(() => { const t = performance.now(); refresh(); return (performance.now() - t) / 1000 })()"
        )
        assert seconds < 5
        assert not page.faults


def test_the_module_tree_is_coloured_and_filters(large: Path) -> None:
    with Page(large) as page:
        page.run("node = (path) => [...document.querySelectorAll('#tree .node')].find(n => n.dataset.path === path); 0")
        page.run("if (!node('blocks.0')) node('blocks').querySelector('.twist').click()")
        assert page.run("node('blocks.0').querySelector('.dot').className") == "dot pass"
        assert page.run("node('blocks.500').querySelector('.dot').className") == "dot error"
        page.run("node('blocks.500').click()")
        assert page.run("document.getElementById('shown').textContent") == "120 of 100000 rows"
        assert not page.faults


def test_names_are_shown_as_text_and_never_run(tmp_path: Path) -> None:
    evil = "Functional.</script><img src=x onerror=document.title='run'>.0.forward"
    write_dump(tmp_path / "a", {evil: call(tensor(1.0), output=tensor(2.0))})
    write_dump(tmp_path / "b", {evil: call(tensor(1.0), output=tensor(3.0))})
    write_html(compare(tmp_path / "a", tmp_path / "b"), tmp_path / "report.html")
    with Page(tmp_path / "report.html") as page:
        assert "<img src=x" in page.run("document.getElementById('origin').textContent")
        assert page.run("document.title") == "msprobe compare"
        assert page.run("document.images.length") == 0
        assert not page.faults


def test_the_file_needs_nothing_from_outside(large: Path) -> None:
    text = large.read_text()
    head = text[: text.index('<script id="data"')]
    assert "http" not in head.replace("http-equiv", "")
    assert "src=" not in head
    assert "default-src 'none'" in head
    assert large.stat().st_mode & 0o777 == 0o640
