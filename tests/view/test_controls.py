"""Every button, link and edge that tests/view/test_page.py does not use, each with what it must change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import planted
import pytest
from dumps import planted_pair, ranks_dump, unmatched_pair
from polling import until
from written import call, saved, write_dump

from msprobe.compare import compare
from msprobe.compare.result import row_id

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return planted_pair(tmp_path_factory.mktemp("pair"), "changed activation")


def name_of(page: Any) -> str:
    found: str = page.inner_text("#row_name")
    return found


def drag(page: Any, selector: str, by: int) -> None:
    box = page.locator(selector).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + by, y, steps=4)
    page.mouse.up()


def test_the_answer_folds_and_its_button_goes_to_the_row(open_view: Open, pair: tuple[Path, Path]) -> None:
    page = open_view(*pair).page
    page.click("#fold")
    assert not page.locator("#answer .excerpt").first.is_visible()
    page.click("#fold")
    assert page.locator("#answer .excerpt").first.is_visible()
    page.keyboard.press("n")  # this fault was introduced once
    until(page, "document.getElementById('message').textContent.startsWith('No other call')")
    page.keyboard.press("PageDown")
    until(page, "!document.getElementById('row_name').textContent.includes('relu')")
    page.click("#go")
    until(page, "document.getElementById('row_name').textContent.includes('relu')")
    assert not page.locator("#answer .excerpt").first.is_visible()


def test_one_step_has_no_empty_lanes_and_a_click_on_the_plot_goes_to_the_row(
    open_view: Open, pair: tuple[Path, Path]
) -> None:
    page = open_view(*pair).page
    plot, rows = page.locator("#plot").bounding_box(), page.locator("#scroll").bounding_box()
    assert rows["y"] - plot["y"] - plot["height"] < 8
    before = page.evaluate("+document.querySelector('.row.picked').dataset.row")
    page.mouse.click(plot["x"] + plot["width"] * 0.9, plot["y"] + 20)
    until(page, f"+document.querySelector('.row.picked').dataset.row > {before} + 10")
    total = page.evaluate("parseInt(document.getElementById('count').textContent)")
    assert abs(page.evaluate("+document.querySelector('.row.picked').dataset.row") / total - 0.89) < 0.03
    page.keyboard.press("PageUp")
    page.keyboard.press("PageUp")
    page.keyboard.press("PageDown")
    assert abs(page.evaluate("+document.querySelector('.row.picked').dataset.row") / total - 0.9) > 0.02


def test_the_buttons_of_a_row(open_view: Open, pair: tuple[Path, Path]) -> None:
    page = open_view(*pair).page
    page.click("#trace")
    assert "relu" in page.inner_text("#path")
    page.click("#trace")
    assert page.locator("#path").count() == 0
    page.locator("#right .arguments button").first.click()
    until(page, "document.getElementById('row_name').textContent.endsWith('input.0')")
    page.click("#pick")
    page.wait_for_selector("#pick[aria-pressed=true]")
    assert page.locator("#tab_collect").inner_text().endswith("(1)")
    assert "✓" in page.inner_text("#rows .row.picked")
    summary = page.locator("#right details summary")
    summary.click()
    assert page.locator("#right details .frame").first.is_visible()


def test_columns_and_panels_are_resized_with_the_mouse(open_view: Open, pair: tuple[Path, Path]) -> None:
    page = open_view(*pair).page
    cell = "document.querySelector('#rows .row .mono').getBoundingClientRect().width"
    wide = page.evaluate(cell)
    drag(page, ".grip[data-column=name]", 80)
    assert abs(page.evaluate(cell) - wide - 80) < 3
    right = page.locator("#right").bounding_box()["width"]
    drag(page, "#right_edge", -100)
    assert abs(page.locator("#right").bounding_box()["width"] - right - 100) < 16
    left = page.locator("#left").bounding_box()["width"]
    drag(page, "#left_edge", 60)
    assert abs(page.locator("#left").bounding_box()["width"] - left - 60) < 16


def test_links_and_configs_are_copied_and_downloaded(open_view: Open, pair: tuple[Path, Path]) -> None:
    opened = open_view(*pair, permissions=["clipboard-read", "clipboard-write"])
    page = opened.page
    copied = "navigator.clipboard.readText()"
    page.keyboard.press("c")
    until(page, "document.getElementById('message').textContent === 'Copied.'")
    assert page.evaluate(copied) == page.url
    page.keyboard.press("x")
    page.keyboard.press("6")
    page.get_by_role("button", name="Copy", exact=True).click()
    until(page, "document.getElementById('message').textContent === 'Copied.'")
    assert json.loads(page.evaluate(copied))["tensor"]["list"] == ["Functional.relu.0.forward"]
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download").click()
    assert waiting.value.suggested_filename == "config.json"
    assert json.loads(Path(waiting.value.path()).read_text())["task"] == "tensor"
    page.locator("#collect .links button").click()
    until(page, "document.getElementById('tab_rows').getAttribute('aria-selected') === 'true'")


def test_a_match_is_filtered_made_and_removed(open_view: Open, tmp_path: Path) -> None:
    page = open_view(*unmatched_pair(tmp_path), fresh=True).page
    page.click("#tab_match")
    assert "one call on each side" in page.inner_text("#match")
    page.fill("#filter_golden", "nothing")
    assert page.locator("#unmatched_golden button").count() == 0
    page.fill("#filter_golden", "MISH")
    page.locator("#unmatched_target button").click()
    page.locator("#unmatched_golden button").click()
    page.click("#do_match")
    until(page, "document.getElementById('row_name').textContent.includes('mish')")
    page.click("#tab_match")
    page.get_by_role("button", name="Remove").click()
    until(page, "document.querySelectorAll('#unmatched_target button').length === 1")


def test_a_line_between_ranks_leads_to_its_collective(open_view: Open, tmp_path: Path) -> None:
    page = open_view(ranks_dump(tmp_path / "t", wrong_rank=1), ranks_dump(tmp_path / "g")).page
    page.keyboard.press("4")
    box = page.locator("#ranks").bounding_box()
    page.locator("#ranks").click(position={"x": box["width"] / 4, "y": box["height"] - 30})
    until(page, "document.getElementById('row_name').textContent.includes('all_reduce.5')")


@pytest.mark.parametrize("width", [1280, 2560])
def test_all_rows_have_different_names_and_complete_numbers(
    open_view: Open, pair: tuple[Path, Path], width: int
) -> None:
    """Two rows never look the same, although names are shortened; no number is cut."""
    page = open_view(*pair, viewport={"width": width, "height": width * 9 // 16}).page
    shown: dict[str, str] = {}
    total = page.evaluate("parseInt(document.getElementById('count').textContent)")
    for top in range(0, total * 24, 240):
        page.evaluate(f"document.getElementById('scroll').scrollTop = {top}")
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        rows = page.evaluate(
            "[...document.querySelectorAll('#rows .row')].map(row => [row.dataset.tip.split('\\n')[0],"
            " row.querySelector('.mono').textContent, [...row.querySelectorAll('.n, [role=cell]:first-child')]"
            ".every(cell => cell.scrollWidth <= cell.clientWidth)])"
        )
        assert all(fits for _, _, fits in rows), [name for name, _, fits in rows if not fits]
        shown.update({name: text for name, text, _ in rows})
    assert len(shown) == total > 500
    same = [name for name, text in shown.items() if list(shown.values()).count(text) > 1]
    assert same == []


def test_the_address_names_a_row_by_its_stable_id(open_view: Open, tmp_path: Path) -> None:
    golden = planted.run("transformer", tmp_path / "golden")
    target = planted.run("transformer", tmp_path / "target", "missing scale")
    comparison = compare(target, golden)
    ids = [row_id(unit, row) for unit, row in comparison.rows()]
    page = open_view(target, golden).page
    address = "new URLSearchParams(location.hash.slice(1)).get('row')"
    assert page.evaluate(address) in ids
    alone = next(one for one in ids if one.endswith("@golden"))
    for wanted in (ids[0], alone, ids[-1]):
        page.evaluate(f"location.hash = new URLSearchParams({{row: {json.dumps(wanted)}}})")
        name = wanted.partition("/")[2].partition("/")[2].removesuffix("@golden")
        until(page, f"document.getElementById('row_name').textContent === {json.dumps(name)}")
        assert page.evaluate(address) == wanted


def test_a_chinese_answer_has_no_english_sentence(open_view: Open, tmp_path: Path) -> None:
    golden = planted.run("transformer", tmp_path / "golden")
    for file in golden.rglob("run.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "threads": 1_000}))
    for fault in ("wrong eps", "missing scale", "wrong backward", "changed activation"):
        page = open_view(planted.run("transformer", tmp_path / fault, fault), golden, locale="zh-CN").page
        said = [page.inner_text(".sentence"), *page.locator("#answer dd").all_inner_texts()]
        keys = ["", *page.locator("#answer dt").all_inner_texts()]
        for key, text in zip(keys, said):
            if key not in ("调用", "模块", "源码", "库内", "调用于", "调用于（标杆）"):
                assert any("一" <= letter <= "鿿" for letter in text), (fault, key, text)
        notes = page.locator("#answer details div").all_text_contents()
        assert notes
        assert all(any("一" <= letter <= "鿿" for letter in text) for text in notes), (fault, notes)
        page.check("#introduced")
        until(page, "document.querySelectorAll('#rows .row').length > 0")
        reasons = page.locator("#rows .row [role=cell]:last-child").all_inner_texts()
        assert all(any("一" <= letter <= "鿿" for letter in text) for text in reasons if text), (fault, reasons)
    alone = open_view(planted.run("transformer", tmp_path / "nan", "nan source"), locale="zh-CN").page
    assert "是第一个产生 NaN 或无穷的调用" in alone.inner_text(".sentence")


def saved_pair(root: Path) -> tuple[Path, Path]:
    """One call with an equal input, and an output with NaN in the target and infinity in the golden run."""
    sides = []
    for side, value, place in (("target", np.nan, (1, 2)), ("golden", np.inf, (3, 4))):
        rank = root / side / "step0" / "rank"
        same, special = (np.arange(24, dtype=np.float32).reshape(4, 6) for _ in range(2))
        special[place] = value
        data = call(saved(rank, "x", same), output=saved(rank, "y", special))
        sides.append(write_dump(root / side, {"Functional.relu.0.forward": data}, task="tensor"))
    return sides[0], sides[1]


def open_tensor(page: Any, name: str) -> None:
    page.keyboard.press("/")
    page.keyboard.type(name)
    until(page, "parseInt(document.getElementById('count').textContent) === 1")
    page.keyboard.press("Enter")
    until(page, f"document.getElementById('row_name').textContent.includes({json.dumps(name)})")
    page.wait_for_selector("#open_tensor")
    page.keyboard.press("o")
    page.wait_for_selector("canvas.heat")


def test_the_map_of_nan_shows_each_place_and_whose_it_is(open_view: Open, tmp_path: Path) -> None:
    page = open_view(*saved_pair(tmp_path)).page
    open_tensor(page, "Functional.relu.0.forward.output.0")
    page.click("[data-mode=not_finite]")
    page.wait_for_selector("[data-mode=not_finite][aria-pressed=true]")
    legend = page.locator("#tensor .legend").inner_text()
    assert "NaN 1, inf 0" in legend
    assert "NaN 0, inf 1" in legend
    box = page.locator("canvas.heat").bounding_box()
    for (row, column), owner in {(1, 2): "target", (3, 4): "golden", (0, 0): ""}.items():
        page.mouse.move(box["x"] + box["width"] * (column + 0.5) / 6, box["y"] + box["height"] * (row + 0.5) / 4)
        said = json.dumps(f"[{row}, {column}] {owner}".strip())
        until(page, f"document.getElementById('under').textContent.trim() === {said}")


def test_equal_tensors_say_so(open_view: Open, tmp_path: Path) -> None:
    page = open_view(*saved_pair(tmp_path)).page
    open_tensor(page, "Functional.relu.0.forward.input.0")
    page.wait_for_selector("#equal")
    assert page.inner_text("#equal") == "Both sides are the same, element by element."
