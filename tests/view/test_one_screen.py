"""The first screen explains itself: the code of both runs, what was run, the map, the legend, tooltips, tabs."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dumps import planted_pair, ranks_dump
from polling import until
from written import call, tensor, write_dump

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
        assert page.evaluate("(r => r.scrollWidth <= r.clientWidth)(document.getElementById('runs'))")


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


def test_the_line_of_the_library_stands_beside_yours(open_view: Open, tmp_path: Path) -> None:
    page = open_view(*planted_pair(tmp_path, "wrong eps")).page
    labels = page.locator("#answer .place strong").all_inner_texts()
    parts = ["module made at", "your code", "library"]
    assert labels == parts  # of both runs
    places = page.locator("#answer .place .mono").all_inner_texts()
    assert all("planted.py:" in place for place in places[:2])
    assert places[2].startswith("torch/…/normalization.py:")
    made, own, library = page.locator("#answer .excerpt .here").all_inner_texts()
    assert 'self.ln1 = nn.LayerNorm(width, eps=1e-3 if fault == "wrong eps" else 1e-5)' in made
    assert "self.ln1(x)" in own
    assert "F.layer_norm(" in library
    assert "look where the module is made, at its configuration" in page.inner_text("#answer dl")
    box, shown = page.locator("#answer").bounding_box(), page.locator("#answer .excerpt .here").last.bounding_box()
    assert shown["y"] + shown["height"] <= box["y"] + box["height"]  # without scrolling


HEADS = """
import torch
from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(0)
lift, gain = torch.nn.Linear(8, 8), torch.randn(2, 4)
debugger = PrecisionDebugger(dump_path={path!r}, task="statistics", level="L1", step=[0])
debugger.start()
h = lift(torch.randn(5, 8))
h = {view}
left = h * gain
left.square().sum().backward()
debugger.stop()
debugger.step()
"""


def test_a_line_near_the_call_that_differs_is_marked(open_view: Open, tmp_path: Path) -> None:
    dumps = []
    for name, view in (("target", "h.view(5, 4, 2).transpose(1, 2)"), ("golden", "h.view(5, 2, 4)")):
        script = tmp_path / name / "train.py"
        script.parent.mkdir()
        script.write_text(HEADS.format(path=str(tmp_path / name / "dump"), view=view))
        runpy.run_path(str(script))
        dumps.append(tmp_path / name / "dump")
    page = open_view(*dumps).page
    said = (
        "it is Functional.linear.0.forward.view(5, 4, 2).transpose(1, 2), not Functional.linear.0.forward.view(5, 2, 4)"
    )
    assert said in page.inner_text("#answer .sentence")
    assert page.locator("#answer .excerpt .here").all_inner_texts() == ["11  left = h * gain"] * 2
    marks = page.locator("#answer .excerpt mark").all_inner_texts()
    assert marks[0].strip() == "h = h.view(5, 4, 2).transpose(1, 2)"
    assert "h = h.view(5, 2, 4)" in [mark.strip() for mark in marks]


def test_the_words_of_the_argument_that_differs_are_marked_in_the_line(open_view: Open, tmp_path: Path) -> None:
    dumps = []
    mask = tensor(1.0, [4, 2], "torch.bool", Max=True, Min=False, Mean=0.25, Norm=None)
    for name, gain in (("t", 1.5), ("g", 1.0)):
        data = {
            "Torch.lt.0.forward": call(mask, output=mask),
            "Tensor.__mul__.0.forward": call(tensor(1.0), {"type": "float", "value": gain}, output=tensor(gain)),
        }
        stack = {"0": [["Tensor.__mul__.0.forward"], ["File train.py, line 7, in forward, \n y = x * self.gain"]]}
        dumps.append(write_dump(tmp_path / name, data, stacks=stack))
    page = open_view(*dumps).page
    assert page.locator("#answer mark").all_inner_texts() == ["self.gain"]
    assert "Tensor.__mul__.0.forward.input.1 = self.gain" in page.inner_text("#answer")
    row = page.locator(".row", has_text="Torch.lt.0.forward.input.0")
    assert row.locator(".n").all_inner_texts()[-2:] == ["2 true", "2 true"]
    row.click()
    page.wait_for_selector("#right .arguments td:has-text('bool [4, 2] 2 of 8 true')")


LOOP = """
import torch
from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters())
debugger = PrecisionDebugger(dump_path={path!r}, task="statistics", level="mix", step=[0, 1])
for step in range(2):
    if {clear}:
        optimizer.zero_grad()
    debugger.start(model)
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    debugger.stop()
    debugger.step()
"""


def test_a_fault_of_the_loop_shows_its_line_and_no_call_that_has_nothing_to_do_with_it(
    open_view: Open, tmp_path: Path
) -> None:
    dumps = []
    for name, clear in (("target", False), ("golden", True)):
        script = tmp_path / name / "train.py"
        script.parent.mkdir()
        script.write_text(LOOP.format(path=str(tmp_path / name / "dump"), clear=clear))
        runpy.run_path(str(script))
        dumps.append(tmp_path / name / "dump")
    page = open_view(*dumps).page
    assert "the target does not clear the gradients before the backward" in page.inner_text("#answer .sentence")
    assert page.locator("#answer .excerpt .here").all_inner_texts() == ["14  loss.backward()"] * 2
    marks = page.locator("#answer mark").all_inner_texts()
    assert [mark.strip() for mark in marks] == []  # the line that differs is farther away
    assert page.locator("#answer table.sides").count() == 0
    assert "call" not in page.locator("#answer dt").all_inner_texts()
    page.click("#go")
    page.wait_for_selector(".row.picked, .row[aria-selected='true']")
    assert page.inner_text("#right h2.first, #right .mono").startswith("Tensor.lerp_.0.forward")


def test_the_same_line_of_two_copies_of_a_script_is_shown_once(open_view: Open, tmp_path: Path) -> None:
    """Each run was started in a directory of its own."""
    dumps = []
    for name, value in (("t", 2.0), ("g", 1.0)):
        data = {"Functional.relu.0.forward": call(tensor(1.0), output=tensor(value))}
        stack = {"0": [list(data), [f"File /home/{name}/train.py, line 7, in forward, \n y = relu(x)"]]}
        dumps.append(write_dump(tmp_path / name, data, stacks=stack, run={"directory": f"/home/{name}"}))
    page = open_view(*dumps).page
    assert page.locator("#answer .place strong").all_inner_texts() == ["both runs"]


def test_an_argument_that_one_run_does_not_give_is_the_origin_and_says_so(open_view: Open, tmp_path: Path) -> None:
    names = ["Functional.gelu.0.forward", "Functional.relu.0.forward"]
    target = {names[0]: call(tensor(1.0), output=tensor(2.1)), names[1]: call(tensor(2.1), output=tensor(4.2))}
    target[names[0]]["input_kwargs"] = {"approximate": {"type": "str", "value": "tanh"}}
    golden = {names[0]: call(tensor(1.0), output=tensor(2.0)), names[1]: call(tensor(2.0), output=tensor(4.0))}
    page = open_view(write_dump(tmp_path / "t", target), write_dump(tmp_path / "g", golden)).page
    assert page.inner_text(".row.picked .mono").endswith("input.approximate")
    assert page.locator(".row.picked .dot.origin").count() == 1
    assert page.locator("#answer .sides tbody td").all_inner_texts() == ["tanh", "not given"]


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


def inked(page: Any, name: str, red: bool = True) -> list[float]:
    """Where a picture has the colour of consequences (or of passes), as parts of its width beside the labels."""
    wanted = "r > 130 && g < 130 && b < 90" if red else "g > r + 20 && g > b + 20"
    script = f"""(() => {{
        const c = document.getElementById("{name}"), pen = c.getContext("2d"), found = new Set();
        const d = pen.getImageData(52, 0, c.width - 52, c.height).data;
        for (let i = 0; i < d.length; i += 4) {{
            const [r, g, b, a] = d.slice(i, i + 4);
            if (a > 60 && ({wanted})) found.add((i / 4) % (c.width - 52) / (c.width - 52));
        }}
        return [...found].sort((a, b) => a - b);
    }})()"""
    found: list[float] = page.evaluate(script)
    return found


def test_the_plot_and_the_lanes_have_one_axis_and_ranks_stand_side_by_side(open_view: Open, tmp_path: Path) -> None:
    """The rows of rank 0 come before those of rank 3 in the table, but no consequence stands left of the origin."""
    dumps = ranks_dump(tmp_path / "t", ranks=4, steps=1, wrong_rank=3), ranks_dump(tmp_path / "g", ranks=4, steps=1)
    page = open_view(*dumps).page
    mark = page.evaluate("""(() => {
        const c = document.getElementById("plot"), d = c.getContext("2d").getImageData(52, 2, c.width - 52, 1).data;
        for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 200) return (i / 4) / (c.width - 52);
    })()""")
    plot, lanes = inked(page, "plot"), inked(page, "lanes")
    assert 0.25 < mark < 0.4  # the third of six layers
    assert mark - 0.01 <= plot[0] < mark + 0.05
    assert 0.33 <= lanes[0] <= mark  # the call begins with its input
    box = page.locator("#lanes").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.9)
    assert page.inner_text("#tip").startswith("step0/rank3\n")
    page.mouse.click(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.9)
    until(page, "document.getElementById('unit').value === '3'")


def test_the_steps_follow_each_other_on_the_axis(open_view: Open, tmp_path: Path) -> None:
    dumps = ranks_dump(tmp_path / "t", ranks=2, steps=2, wrong_rank=1), ranks_dump(tmp_path / "g", ranks=2, steps=2)
    page = open_view(*dumps).page
    box = page.locator("#lanes").bounding_box()
    for part, lane, unit in ((0.3, 0, "step0/rank0"), (0.3, 1, "step0/rank1"), (0.9, 0, "step1/rank0")):
        page.mouse.move(box["x"] + 52 + (box["width"] - 52) * part, box["y"] + box["height"] * (0.25 + lane / 2))
        assert page.inner_text("#tip").startswith(unit)
    calm = inked(page, "lanes", red=False)
    assert any(0.5 < place < 0.6 for place in calm)  # the second step is calm again before the fault
    assert "faint points pass" in page.evaluate("document.getElementById('plot').getAttribute('aria-label')")


def test_the_name_of_a_step_and_rank_has_room_and_the_language_button_needs_no_font(
    open_view: Open, tmp_path: Path
) -> None:
    page = open_view(ranks_dump(tmp_path / "t", ranks=12, wrong_rank=1), ranks_dump(tmp_path / "g", ranks=12)).page
    cut = "[...document.querySelectorAll('#rows .row > span:nth-child(2)')].some(e => e.scrollWidth > e.clientWidth)"
    page.fill("#search", "linear.0.forward")
    until(page, "document.getElementById('count').textContent.startsWith('48 ')")
    assert not page.evaluate(cut)
    assert page.inner_text("#language").isascii()


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
