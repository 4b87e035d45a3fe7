"""Every interaction of the page in a real browser, over a real training with a fault and its golden run."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dumps import planted_pair, ranks_dump, unmatched_pair
from polling import until

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """relu instead of gelu in the second block, two steps, with tensors."""
    root = tmp_path_factory.mktemp("pair")
    return planted_pair(root, "changed activation", task="tensor", steps=2)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("ranks")
    return ranks_dump(root / "target", wrong_rank=1), ranks_dump(root / "golden")


def picked(page: Any) -> str:
    """The name of the row whose details are shown."""
    found: str = page.inner_text("#row_name")
    return found


def counted(page: Any) -> int:
    """How many rows are shown, when the filter is done."""
    return int(page.inner_text("#count").split()[0])


def wait_for_count(page: Any, check: str) -> int:
    until(page, f"(() => {{ const n = parseInt(document.getElementById('count').textContent); return {check}; }})()")
    return counted(page)


def wait_until_settled(page: Any) -> None:
    """The filter follows each typed letter: waits until the count stays."""
    before = -1
    while before != (before := counted(page)):
        page.wait_for_timeout(700)


def test_the_answer_is_on_top_and_enter_goes_there(open_view: Open, pair: tuple[Path, Path]) -> None:
    page = open_view(*pair).page
    sentence = page.inner_text(".sentence")
    assert "relu" in sentence
    assert "blocks.1" in sentence
    here = page.locator("#answer .excerpt .here").first.inner_text()
    assert "F.relu(h)" in here
    assert page.locator("#answer .excerpt").count() == 2
    assert page.locator("#answer .excerpt mark").first.inner_text() == "relu"
    sides = page.inner_text("#answer .sides")
    assert "target" in sides
    page.keyboard.press("n")
    page.keyboard.press("Enter")
    page.wait_for_selector("#answer.folded")
    assert "relu" in picked(page)
    assert page.query_selector("#rows .row.picked .dot.origin") is not None
    assert "origin" in page.inner_text("#rows .row.picked")
    assert page.locator("#rows .dot.origin").count() == 1


def test_two_trees_open_together_and_filter(open_view: Open, pair: tuple[Path, Path]) -> None:
    page = open_view(*pair).page
    node = page.locator("[role=treeitem][data-path='blocks.1']")
    assert node.locator("> span").count() == 2
    assert node.locator("> span").nth(0).inner_text().strip("▸▾ \n").startswith("1")
    assert node.locator("> span").nth(1).inner_text().startswith("1")
    page.select_option("#unit", "0")
    until(page, "document.querySelectorAll(\"[data-path='blocks.0'] .dot.introduced\").length === 0")
    assert node.locator(".dot.origin").count() == 2
    assert page.locator("[data-path='blocks'] .dot.origin").count() == 0  # the origin is one mark of each tree
    closed = page.locator("[data-path='blocks.0']")
    assert closed.get_attribute("aria-expanded") == "false"
    assert page.locator("[data-path='blocks.0.attn']").count() == 0
    closed.locator(".twist").click()
    child = page.locator("[data-path='blocks.0.attn'] > span")
    assert child.count() == 2
    assert all("attn" in child.nth(side).inner_text() for side in (0, 1))
    before = counted(page)
    closed.click()
    inside = wait_for_count(page, f"n < {before}")
    assert inside > 10
    names = page.locator("#rows .row .mono").all_inner_texts()
    assert not any("blocks.1" in name for name in names)
    page.keyboard.press("Escape")
    wait_for_count(page, f"n > {before}")


def test_the_tree_has_keys_and_the_map_leads_to_a_module(open_view: Open, pair: tuple[Path, Path]) -> None:
    page = open_view(*pair).page
    page.keyboard.press("m")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    focus = "document.activeElement.dataset.path"
    assert page.evaluate(focus) == "blocks"
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "false"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focus) == "blocks.0"
    box = page.locator("#map").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.1, box["y"] + 25)
    assert "forward" in page.inner_text("#tip")
    page.mouse.click(box["x"] + box["width"] * 0.1, box["y"] + 25)
    page.wait_for_selector(".node.picked")
    assert "module=" in page.url


def test_the_plot_zooms_and_the_lanes_choose_a_step(open_view: Open, pair: tuple[Path, Path]) -> None:
    page = open_view(*pair).page
    total = counted(page)
    inks = """(() => {
        const c = document.getElementById("plot"), found = new Set();
        const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
        for (let i = 0; i < d.length; i += 4) if (d[i + 3]) found.add(d[i] + "," + d[i + 1]);
        return found.size;
    })()"""
    assert page.evaluate(inks) >= 3
    box = page.locator("#plot").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 60, steps=3)
    page.mouse.up()
    zoomed = wait_for_count(page, f"n < {total}")
    assert abs(zoomed / total - 100 / (box["width"] - 52)) < 0.05
    assert "zoomed" in page.inner_text("#count")
    page.reload()
    wait_for_count(page, f"n === {zoomed}")  # the address has the zoom
    page.click("#whole")
    wait_for_count(page, f"n === {total}")
    lanes = page.locator("#lanes").bounding_box()
    page.mouse.click(lanes["x"] + lanes["width"] * 0.8, lanes["y"] + lanes["height"] / 2)
    half = wait_for_count(page, f"n < {total}")
    assert half == total // 2
    assert page.eval_on_selector("#unit", "e => e.value") == "1"


def test_n_and_p_jump_and_slash_searches(open_view: Open, pair: tuple[Path, Path]) -> None:
    page = open_view(*pair).page
    first = picked(page)
    page.keyboard.press("n")
    until(page, f"document.getElementById('row_name').textContent !== {json.dumps(first)}")
    second = picked(page)
    assert "introduced" in page.inner_text("#rows .row.picked")
    page.keyboard.press("p")
    until(page, f"document.getElementById('row_name').textContent !== {json.dumps(second)}")
    total = counted(page)
    for text, part in (("softmax", "softmax"), ("Functional.*norm*output.0", "norm"), ("planted.py:9", "")):
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "search"
        page.keyboard.type(text)
        wait_for_count(page, f"n > 0 && n < {total}")
        wait_until_settled(page)
        page.keyboard.press("Enter")
        page.wait_for_selector("#rows .row.picked")
        until(page, f"document.getElementById('row_name').textContent.includes({json.dumps(part)})")
        assert part in picked(page)
        page.keyboard.press("Escape")
        wait_for_count(page, f"n === {total}")
    page.keyboard.press("/")
    page.keyboard.type("statistics say nothing like this")
    assert wait_for_count(page, "n === 0") == 0
    assert page.inner_text("#none") == "No row matches statistics say nothing like this"
    page.keyboard.press("Escape")
    page.wait_for_selector("#none", state="hidden")


def test_filters_and_arrows(open_view: Open, pair: tuple[Path, Path]) -> None:
    page = open_view(*pair).page
    total = counted(page)
    page.uncheck("input[data-verdict=pass]")
    differing = wait_for_count(page, f"n < {total}")
    page.check("#introduced")
    introduced = wait_for_count(page, f"n < {differing}")
    words = set(page.locator("#rows .row [role=cell]:first-child").all_inner_texts())
    assert words == {"origin", "introduced"}
    assert introduced > 0
    page.uncheck("#introduced")
    page.check("input[data-verdict=pass]")
    wait_for_count(page, f"n === {total}")
    before = page.evaluate("+document.querySelector('.row.picked').dataset.row")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("+document.querySelector('.row.picked').dataset.row") == before + 1


def test_a_row_has_both_sides_arguments_flow_and_stack(open_view: Open, pair: tuple[Path, Path]) -> None:
    page = open_view(*pair).page
    page.keyboard.press("/")
    page.keyboard.type("blocks.1.fc2.Linear.forward.0.output")
    wait_for_count(page, "n === 2")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('row_name').textContent.includes('fc2')")
    details = page.inner_text("#right")
    for text in ("norm", "confidence", "exact", "relative difference", "tolerance"):
        assert text in details
    assert page.locator("#right .arguments .changed").count() >= 2
    assert "parameters.weight" in page.inner_text("#right .arguments")
    assert page.locator("#went button").count() >= 1
    stack = page.locator("#right .frame.user")
    assert "planted.py" in stack.first.inner_text()
    assert page.locator("#right details summary").inner_text().endswith("frames of libraries")
    assert not page.locator("#right details .frame").first.is_visible()
    page.keyboard.press("b")
    path = page.locator("#path button").all_inner_texts()
    assert any("relu" in name for name in path)
    page.locator("#went button").first.click()
    until(page, "!document.getElementById('row_name').textContent.includes('fc2.Linear.forward.0.output')")
    assert page.locator("#came button").count() == 1


def test_a_tensor_has_pictures_and_its_worst_elements(open_view: Open, pair: tuple[Path, Path]) -> None:
    page = open_view(*pair).page
    page.keyboard.press("/")
    page.keyboard.type("blocks.1.fc2.Linear.forward.0.input")
    wait_for_count(page, "n === 2")
    page.keyboard.press("Enter")
    page.wait_for_selector("#open_tensor")
    page.keyboard.press("o")
    page.wait_for_selector("#worst tbody tr")
    assert "float32 [4, 16, 128]" in page.inner_text("#shapes")
    assert page.locator("#worst tbody tr").count() == 20
    worst = page.locator("#worst tbody tr").first.locator("td").all_inner_texts()
    assert abs(abs(float(worst[1]) - float(worst[2])) - float(worst[3])) < 1e-3
    for mode in ("target", "golden", "not_finite", "difference"):
        page.click(f"[data-mode={mode}]")
        page.wait_for_selector(f"[data-mode={mode}][aria-pressed=true]")
    page.select_option("#rows_axis", "0")
    until(page, "document.querySelector('canvas.heat').height === 4")
    page.fill("input[data-axis='1']", "3")
    page.keyboard.press("Tab")
    page.locator("#worst button").first.click()
    page.wait_for_selector("#unzoom")
    page.click("#unzoom")
    page.wait_for_selector("#unzoom", state="detached")
    box = page.locator("canvas.heat").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.5)
    until(page, "document.getElementById('under').textContent.startsWith('[')")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.9)
    page.mouse.up()
    page.wait_for_selector("#unzoom")


def test_two_calls_are_matched_by_hand(open_view: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = open_view(*unmatched_pair(tmp_path), fresh=True).page
    page.keyboard.press("5")
    page.locator("#unmatched_target button[data-name='Functional.mish.0.forward']").click()
    assert page.is_disabled("#do_match")
    page.locator("#unmatched_golden button[data-name='Torch.my_mish.0.forward']").click()
    page.click("#do_match")
    until(page, "document.getElementById('row_name').textContent.startsWith('Functional.mish.0.forward')")
    until(page, "document.getElementById('right').textContent.includes('mapping')")
    page.keyboard.press("5")
    assert page.locator("#unmatched_target button").count() == 0
    page.click("#save_mapping")
    page.wait_for_selector("#saved")
    saved = (tmp_path / "msprobe_mapping.yaml").read_text()
    assert saved == "Functional.mish.0.forward: Torch.my_mish.0.forward\n"
    assert f"-dm {tmp_path / 'msprobe_mapping.yaml'}" in page.inner_text("#match")


def test_chosen_rows_become_a_config_that_msprobe_accepts(
    open_view: Open, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    page = open_view(*pair).page
    page.keyboard.press("x")
    page.keyboard.press("n")
    page.keyboard.press("x")
    assert page.locator("#tab_collect").inner_text().endswith("(2)")
    page.keyboard.press("6")
    config = json.loads(page.inner_text("#config"))
    assert "Functional.relu.0.forward" in config["tensor"]["list"]
    assert len(config["tensor"]["list"]) == 2
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    from msprobe.config.loading import load

    assert load("pytorch", path).task == "tensor"
    page.click("#clear_picks")
    until(page, "document.getElementById('collect').textContent.includes('Choose rows')")


def test_a_link_restores_the_view(open_view: Open, pair: tuple[Path, Path]) -> None:
    opened = open_view(*pair)
    page = opened.page
    page.keyboard.press("/")
    page.keyboard.type("softmax")
    shown = wait_for_count(page, "n < 500")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('row_name').textContent.includes('softmax')")
    name, address = picked(page), page.url
    assert "token" not in address
    other = opened.context.new_page()
    other.goto(address)
    other.wait_for_selector("body[data-ready=yes]")
    until(other, f"document.getElementById('row_name')?.textContent === {json.dumps(name)}")
    assert counted(other) == shown
    page.click("#copy_link")
    until(page, "document.getElementById('message').textContent !== ''")


def test_light_dark_two_languages_and_help(open_view: Open, pair: tuple[Path, Path]) -> None:
    page = open_view(*pair, color_scheme="dark").page
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("d")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    page.keyboard.press("l")
    assert page.evaluate("document.documentElement.lang") == "zh"
    assert "数据行" in page.inner_text("#tabs")
    assert "起点" in page.inner_text(".sentence")
    if shutil.which("fc-list"):
        fonts = subprocess.run(["fc-list", ":lang=zh"], capture_output=True, check=True).stdout
        assert ("no Chinese font" in page.inner_text("#message")) == (not fonts)
    page.click("#language")
    assert "Rows" in page.inner_text("#tabs")
    page.keyboard.press("?")
    assert "next introduced row" in page.inner_text("#help")
    page.keyboard.press("Escape")
    assert not page.evaluate("document.getElementById('help').open")


def test_a_chinese_browser_gets_chinese(open_view: Open, ranks: tuple[Path, Path]) -> None:
    page = open_view(*ranks, locale="zh-CN").page
    assert "数据行" in page.inner_text("#tabs")
    words = "[...document.querySelectorAll('button, label, h2, th')].map(e => e.textContent).join(' ')"
    assert "undefined" not in page.evaluate(words)


@pytest.mark.parametrize("width", [1280, 2560])
def test_names_keep_what_tells_them_apart_and_columns_resize(
    open_view: Open, pair: tuple[Path, Path], width: int
) -> None:
    page = open_view(*pair, viewport={"width": width, "height": width * 9 // 16}).page
    fits = "document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight"
    assert page.evaluate(fits)
    tree = "[...document.querySelectorAll('.node > span')]"
    assert page.evaluate(f"{tree}.length") > 10
    assert page.evaluate(f"{tree}.every(e => e.scrollWidth <= e.clientWidth + 1)")
    assert page.evaluate(f"{tree}.every(e => !e.textContent.includes('…'))")  # short names have room
    page.keyboard.press("/")
    page.keyboard.type("Module.blocks.1.attn.proj.Linear.forward")
    wait_for_count(page, "n > 2 && n < 20")
    cells = page.locator("#rows .row .mono")
    narrow = cells.all_inner_texts()
    assert len(set(narrow)) == len(narrow) or page.locator("#unit").count()
    tip = page.locator("#rows .row").first.get_attribute("data-tip")
    assert tip.startswith("Module.blocks.1.attn.proj.Linear.forward.0.")
    overflow = "[...document.querySelectorAll('#rows .row .mono')].every(e => e.scrollWidth <= e.clientWidth + 1)"
    assert page.evaluate(overflow)
    grip = page.locator(".grip[data-column=name]")
    grip.focus()
    before = int(grip.get_attribute("aria-valuenow"))
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    assert int(grip.get_attribute("aria-valuenow")) == before - 100
    assert page.evaluate(overflow)
    page.locator("#left_edge").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#left_edge").get_attribute("aria-valuenow") == "20"


def test_steps_and_ranks_by_module_with_a_curve(open_view: Open, ranks: tuple[Path, Path]) -> None:
    page = open_view(*ranks).page
    page.keyboard.press("3")
    page.wait_for_selector("#curve_legend span")
    assert "layers.2" in page.inner_text("#curve_name")
    assert page.locator("#curve_legend span").count() == 4
    box = page.locator("#heat").bounding_box()
    page.mouse.click(box["x"] + 400, box["y"] + 5)
    until(page, "!document.getElementById('curve_name').textContent.includes('layers.2')")
    page.locator("#heat").focus()
    page.keyboard.press("ArrowDown")


def test_ranks_are_columns_and_the_odd_one_is_marked(open_view: Open, ranks: tuple[Path, Path], tmp_path: Path) -> None:
    page = open_view(*ranks).page
    page.keyboard.press("4")
    page.wait_for_selector("#ranks")
    assert page.inner_text("#odd") == "odd rank: 1"
    assert page.locator("#collective_list button").count() == 6
    page.select_option("#step", "1")
    assert page.inner_text("#odd") in ("", "odd rank: 1")
    page.locator("#collective_list button").nth(3).click()
    until(page, "document.getElementById('row_name').textContent.includes('all_reduce.3')")
    clean = open_view(ranks[1], ranks_dump(tmp_path / "again")).page
    clean.keyboard.press("4")
    clean.wait_for_selector("#ranks")
    assert clean.inner_text("#odd") == ""


def test_nothing_serious_is_found_by_axe(open_view: Open, pair: tuple[Path, Path]) -> None:
    import axe_core_python

    script = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()
    page = open_view(*pair).page
    page.evaluate(script + "; 0")
    for theme, tabs in (("light", "1352"), ("dark", "13")):
        for tab in tabs:
            page.keyboard.press(tab)
            page.wait_for_timeout(150)
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            serious = [
                (tab, theme, one["id"], one["nodes"][0]["html"][:200], one["nodes"][0]["failureSummary"][:300])
                for one in found["violations"]
                if one["impact"] in ("serious", "critical")
            ]
            assert serious == []
        page.keyboard.press("d")
