"""The exported file (`view --export`, `compare --html`) in a real browser; and names that try to be more than text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from polling import until
from written import call, model_data, tensor, write_dump

from msprobe.cli import main
from msprobe.compare import compare
from msprobe.view.export import export_comparison
from msprobe.view.page_files import joined_script

Open = Callable[..., Any]
ROWS = 100_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("large")
    write_dump(root / "golden", *model_data(ROWS))
    stacks = {"0": [["Functional.relu.4000.forward"], ["File train.py, line 7, in forward, \n return F.relu(x)"]]}
    write_dump(root / "target", *model_data(ROWS, drift_from=12_001), stacks)
    export_comparison(compare(root / "target", root / "golden"), root / "report.html")
    return root / "report.html"


def count(page: Any, check: str) -> int:
    until(page, f"(n => {check})(parseInt(document.getElementById('count').textContent))")
    return int(page.inner_text("#count").split()[0])


def test_a_hundred_thousand_rows_open_search_filter_and_scroll(open_view: Open, large: Path) -> None:
    page = open_view(large).page
    assert page.inner_text("#count") == f"{ROWS} of {ROWS} rows"
    assert "Functional.relu.4000.forward" in page.inner_text(".sentence")
    assert page.locator("#rows .row").count() < 100
    until(page, "document.getElementById('right').textContent.includes('return F.relu(x)')")
    assert "origin" in page.inner_text("#rows .row.picked")
    page.fill("#search", "linear.77.forward.output")
    assert count(page, "n < 1000") == 1
    page.fill("#search", "")
    count(page, f"n === {ROWS}")
    page.uncheck("input[data-verdict=pass]")
    assert 0 < count(page, f"n < {ROWS}") < 60_000
    page.evaluate("document.getElementById('scroll').scrollTop = 20000 * 24")
    until(page, "[...document.querySelectorAll('#rows .row')].some(r => r.style.transform === 'translateY(480000px)')")
    if page.locator("[data-path='blocks.0']").count() == 0:
        page.click("[role=treeitem][data-path='blocks'] .twist")
    assert page.locator("[data-path='blocks.0'] .dot.pass").count() == 2
    assert page.locator("[data-path='blocks.500'] .dot.propagated").count() == 2
    page.check("input[data-verdict=pass]")
    page.click("[data-path='blocks.500']")
    assert count(page, "n < 1000") == 120


def test_the_file_needs_nothing_from_outside(large: Path) -> None:
    text = large.read_text()
    head = text[: text.index('<script type="text/plain"')]
    assert "http:" not in text.replace("http-equiv", "")
    assert "https:" not in text
    assert "src=" not in head
    assert "unsafe" not in head
    assert "default-src 'none'; script-src 'sha256-" in head
    assert large.stat().st_mode & 0o777 == 0o640
    assert large.stat().st_size < 8 << 20


def test_joining_leaves_no_module_syntax() -> None:
    script = joined_script()
    assert not [line for line in script.splitlines() if line.startswith(("import ", "export "))]
    given = {}
    for body, names in re.findall(
        r"const (module_\w+) = \(\(\) => \{\n.*?\nreturn \{([^}]*)\};\n\}\)\(\);\n", script, re.S
    ):
        given[body] = {name.strip() for name in names.split(",")}
    for names, module in re.findall(r"^const \{([^}]*)\} = (module_\w+);$", script, re.M):
        wanted = {name.split(":")[0].strip() for name in names.split(",")}
        assert wanted <= given[module], (module, wanted - given[module])


EVIL = [
    "Functional.</script><img src=x onerror=document.title='run'>.0.forward",
    "Functional.\"'`${document.title='run'}.0.forward",
    "Functional.\u2028document.title='run'\u2029.0.forward",
    "Module.<b>.\"><svg onload=document.title='run'>.Linear.forward.0",
    "Functional." + "long" * 260_000 + ".0.forward",
]


def hostile(root: Path) -> tuple[Path, Path]:
    """Names of calls, slots, values, dtypes, stacks and module classes that would be markup or script."""
    for name, value in (("target", 2.0), ("golden", 3.0)):
        data: dict[str, Any] = {}
        for place, evil in enumerate(EVIL):
            odd = tensor(1.0, dtype="<img src=x onerror=document.title='run'>")
            text = {"type": "str", "value": f"<script>document.title='run'</script>{place}"}
            data[evil] = call(odd, text, output=tensor(value + place), **{"<img src=x onerror=alert(1)>": text})
        stacks = {"0": [list(data), ["File <img src=x>.py, line 3, in <svg onload=alert(1)>, \n <b>x</b>"]]}
        construct = dict.fromkeys(EVIL, "Module.<i>a</i>.<u>Class</u>.forward.0")
        write_dump(root / name, data, construct, stacks)
        facts = {"command": ["<b>python</b>", f"<svg onload=alert({value})>"], "hostname": "<i>h</i>" * 4000}
        facts |= {"directory": "<u>", "git_commit": ["<b>"], "torch": {"<b>": "<b>"}, f"<b>{value}": f"<b>{value}</b>"}
        (root / name / "step0" / "rank" / "run.json").write_text(json.dumps(facts))
    return root / "target", root / "golden"


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    root = tmp_path_factory.mktemp("evil")
    target, golden = hostile(root)
    assert main(["view", str(target), str(golden), "--export", str(root / "report.html")]) == 0
    return target, golden, root / "report.html"


@pytest.mark.parametrize("exported", [False, True], ids=["served", "exported"])
def test_hostile_names_stay_text(open_view: Open, evil: tuple[Path, Path, Path], exported: bool) -> None:
    page = (open_view(evil[2]) if exported else open_view(*evil[:2])).page
    rows = page.evaluate("document.querySelectorAll('#rows .row').length")
    for key in "1345621":
        page.keyboard.press(key)
    page.locator("#rows .row").first.click()
    page.keyboard.press("x")
    for _ in range(rows):
        page.keyboard.press("ArrowDown")
        page.keyboard.press("x")
    page.wait_for_timeout(300)
    page.keyboard.press("6")
    page.wait_for_selector("#config")
    assert page.title() == "msprobe view"
    assert page.evaluate("document.images.length + document.querySelectorAll('svg, b, i:not(.key), u').length") == 0
    assert page.evaluate("document.querySelectorAll('script:not(.data)').length") == 1
    assert "<img src=x onerror" in page.inner_text("#config")
    page.keyboard.press("1")
    longest = "Math.max(...[...document.querySelectorAll('#rows .row .mono')].map(e => e.textContent.length))"
    assert page.evaluate(longest) < 400
    page.fill("#search", "longlong*forward.output.0")
    assert count(page, "n < 3") == 1
    page.fill("#search", "\u2028document")
    assert count(page, "n !== 1 && n < 30") > 0


def test_injected_script_would_be_refused(open_view: Open, evil: tuple[Path, Path, Path]) -> None:
    """The policy is the second wall: even markup in the page runs nothing."""
    opened = open_view(*evil[:2])
    opened.page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">');"
        "const s = document.createElement('script'); s.textContent = 'document.title=2'; document.body.append(s);"
    )
    opened.page.wait_for_timeout(200)
    assert opened.page.title() == "msprobe view"
    assert any("Content Security Policy" in fault for fault in opened.faults)
    opened.faults.clear()


def test_an_export_of_the_demo_is_small(tmp_path: Path) -> None:
    """About as many rows as the demo has: its file stays under a megabyte."""
    write_dump(tmp_path / "g", *model_data(4000))
    write_dump(tmp_path / "t", *model_data(4000, drift_from=500))
    assert main(["compare", str(tmp_path / "t"), str(tmp_path / "g"), "--html", str(tmp_path / "r.html")]) == 1
    assert (tmp_path / "r.html").stat().st_size < 1 << 20


def test_a_link_into_the_file_and_its_config(open_view: Open, large: Path) -> None:
    opened = open_view(large)
    page = opened.page
    page.keyboard.press("x")
    page.keyboard.press("6")
    assert json.loads(page.inner_text("#config"))["tensor"]["list"] == ["Functional.relu.4000.forward"]
    page.keyboard.press("1")
    page.check("#introduced")
    assert 0 < count(page, f"n < {ROWS}") < 10
    page.keyboard.press("2")  # tensors are not in the file: the tab is not there
    assert page.get_attribute("#tab_rows", "aria-selected") == "true"
    page.keyboard.press("o")
    assert "msprobe view" in page.inner_text("#message")


def test_a_hostile_watched_run_stays_text(open_view: Open, tmp_path: Path) -> None:
    """Names of targets come from a database that may be a stranger's."""
    import numpy as np

    from msprobe.watch.store import Store
    from msprobe.watch.targets import Target

    evil = "\"><img src=x onerror=document.title='run'><script>document.title='run'</script>"
    store = Store(tmp_path / "watch" / "watch.sqlite", {"framework": "pytorch"}, 1 << 30, None)
    store.add([(Target("grad", evil), ("norm",))])
    for step in range(3):
        store.write(step, np.array([1.0 + step]))
    store.close()
    assert main(["view", str(tmp_path / "watch"), "--export", str(tmp_path / "r.html")]) == 0
    assert "<img" not in (tmp_path / "r.html").read_text()
    for path in (tmp_path / "r.html", tmp_path / "watch"):
        page = open_view(path).page
        page.wait_for_selector("#heat")
        page.locator("#heat").focus()
        page.keyboard.press("ArrowDown")
        until(page, "document.getElementById('curve_name').textContent.includes('<img src=x')")
        assert page.title() == "msprobe view"
        assert page.evaluate("document.images.length") == 0
