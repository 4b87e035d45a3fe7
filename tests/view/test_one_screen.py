"""The first screen explains itself: the code of both runs, what was run, the map, the legend, tooltips, tabs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dumps import planted_pair, ranks_dump
from polling import until

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    target, golden = planted_pair(tmp_path_factory.mktemp("pair"), "changed activation")
    for dump, seed, commit in ((target, 7, "a" * 40), (golden, 3, "b" * 40)):
        (path,) = dump.rglob("run.json")
        run = json.loads(path.read_text())
        path.write_text(json.dumps({**run, "torch_seed": seed, "git_commit": commit, "hostname": "node1"}))
    return target, golden


def test_the_runs_are_described_and_what_differs_is_marked_also_in_the_export(
    open_view: Open, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    from msprobe.cli import main

    assert main(["view", *map(str, pair), "--export", str(tmp_path / "a.html")]) == 0
    for page in (open_view(*pair).page, open_view(tmp_path / "a.html").page):
        changed = page.locator("#runs td.changed").all_inner_texts()
        assert changed == ["seeds torch 7", "commit aaaaaaaaaaaa", "seeds torch 3", "commit bbbbbbbbbbbb"]
        same = page.locator("#runs td[rowspan='2']").all_inner_texts()
        assert "host node1" in same
        assert any(text.startswith("versions torch ") for text in same)


def test_the_code_of_both_runs_with_the_word_that_differs(open_view: Open, pair: tuple[Path, Path]) -> None:
    page = open_view(*pair, permissions=["clipboard-read", "clipboard-write"]).page
    assert page.locator("#answer .place strong").all_inner_texts() == ["target", "golden"]
    words = page.locator("#answer mark").all_inner_texts()
    assert words[:2] == ["relu", "gelu"]
    link = page.locator("#answer .place a").first.get_attribute("href")
    assert link.startswith("vscode://file/")
    assert link.split(":")[-1].isdigit()
    page.locator("#answer .copy_code").first.click()
    until(page, "document.getElementById('message').textContent === 'Copied.'")
    assert page.evaluate("navigator.clipboard.readText()").endswith("h = F.relu(h)")
    wide = "[...document.querySelectorAll('#answer .excerpt span')].every(e => e.scrollWidth <= e.clientWidth)"
    assert page.evaluate(wide)  # long lines are wrapped


def test_the_library_has_a_tab(open_view: Open, tmp_path: Path) -> None:
    page = open_view(*planted_pair(tmp_path, "wrong eps")).page
    assert page.locator("#answer .place strong").all_inner_texts() == ["both runs"]
    page.click("#answer [data-code=library]")
    assert "normalization.py" in page.inner_text("#answer .place")
    page.click("#answer [data-code=own]")
    assert "planted.py" in page.inner_text("#answer .place")


def test_the_map_has_one_origin_calm_before_and_fading_after(open_view: Open, pair: tuple[Path, Path]) -> None:
    page = open_view(*pair).page
    line = page.evaluate(
        "(() => { const c = document.getElementById('map'), pen = c.getContext('2d');"
        " const found = [], y = Math.floor(c.height * 0.7);"
        " for (let x = 0; x < c.width; x++) found.push([...pen.getImageData(x, y, 1, 1).data]);"
        " return found; })()"
    )
    red = [at for at, (r, g, b, a) in enumerate(line) if a == 255 and r > 180 and g < 60 and b < 60]
    assert 4 <= len(red) == red[-1] - red[0] + 1  # one cell
    assert max(a for *_, a in line[: red[0]]) < 100
    after = [a for *_, a in line[red[-1] + 3 :] if a > 30]
    assert after[0] > 2 * after[-1] > 120


def test_tooltips_have_both_sides_at_once_and_every_mark_has_a_legend(open_view: Open, pair: tuple[Path, Path]) -> None:
    page = open_view(*pair).page
    page.locator("#rows .row.picked").hover()
    tip = page.inner_text("#tip")
    assert "target 37.735" in tip
    assert "golden 31.69" in tip
    words = ["origin", "introduced", "propagated", "differs", "not compared", "pass"]
    assert page.locator("#legend span:not(.dot)").all_inner_texts() == words
    page.locator("#legend span").first.hover()
    assert page.inner_text("#tip") == "where the difference started"
    box = page.locator("#plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30)
    assert "relative difference" in page.inner_text("#tip")
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] - 20)
    until(page, "document.getElementById('tip').hidden")


def test_only_tabs_that_apply_are_there(open_view: Open, pair: tuple[Path, Path], tmp_path: Path) -> None:
    page = open_view(*pair).page
    assert page.locator("#tabs button").all_inner_texts() == ["1 Rows", "6 Collect next"]
    page.keyboard.press("4")
    assert page.get_attribute("#tab_rows", "aria-selected") == "true"
    page = open_view(ranks_dump(tmp_path / "t", wrong_rank=1), ranks_dump(tmp_path / "g")).page
    assert page.locator("#tabs button").all_inner_texts() == ["1 Rows", "3 Trends", "4 Ranks", "6 Collect next"]
    page.keyboard.press("3")
    page.wait_for_selector("#heat_colours .ramp")


def test_curves_are_readable_in_the_dark(open_view: Open, tmp_path: Path) -> None:
    page = open_view(ranks_dump(tmp_path / "t", wrong_rank=1), ranks_dump(tmp_path / "g"), color_scheme="dark").page
    page.keyboard.press("3")
    page.wait_for_selector("#curve_legend .key")
    inks = page.evaluate(
        "[...document.querySelectorAll('#curve_legend .key')].map(e => getComputedStyle(e).backgroundColor)"
    )
    for ink in inks:
        red, green, blue = (int(part) for part in ink[4:-1].split(","))
        assert 0.2126 * red + 0.7152 * green + 0.0722 * blue > 130, ink
