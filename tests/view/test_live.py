"""A run that still goes on: the page follows journals and watched runs as they grow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from polling import until

from msprobe.watch.alarms.alarm import Alarm
from msprobe.watch.store import Store
from msprobe.watch.targets import Target

Open = Callable[..., Any]


def test_the_page_follows_a_journal(open_view: Open, tmp_path: Path) -> None:
    from msprobe.pytorch import PrecisionDebugger

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "statistics", "level": "mix", "dump_path": str(tmp_path / "dump")}))
    debugger = PrecisionDebugger(str(config))
    try:
        debugger.start(model)
        model(torch.ones(2, 4))
        journal = tmp_path / "dump" / "step0" / "rank" / "journal.jsonl"
        wait_until(lambda: journal.exists() and journal.read_text().count('"end"') >= 2)
        page = open_view(tmp_path / "dump").page
        assert "live" in page.inner_text("#living")
        rows = int(page.inner_text("#count").split()[0])
        assert rows > 0
        page.keyboard.press("ArrowDown")
        page.evaluate("document.querySelector('#rows .row').click()")
        name = page.inner_text("#row_name")
        model(torch.full((2, 4), 2.0))
        until(page, f"parseInt(document.getElementById('count').textContent) > {rows}")
        until(page, f"document.getElementById('row_name').textContent === {json.dumps(name)}")
    finally:
        debugger.stop()
        debugger.step()
    until(page, "document.getElementById('living') === null")


def wait_until(check: Callable[[], bool]) -> None:
    import time

    end = time.monotonic() + 20
    while not check():
        assert time.monotonic() < end
        time.sleep(0.02)


def watched(path: Path, steps: int, rank: int = 0) -> Store:
    store = Store(path / f"watch_rank{rank}.sqlite", {"framework": "pytorch", "rank": rank}, 1 << 30, None)
    store.add([(Target("grad", f"layer{number}.weight", number), ("norm", "nan")) for number in range(5)])
    store.add([(Target("scalar", "loss"), ("value",))])
    for step in range(steps):
        write(store, step)
    return store


def write(store: Store, step: int, alarms: tuple[Alarm, ...] = ()) -> None:
    numbers = np.array([*(np.exp(-0.1 * step) * (1 + place) for place in range(5) for _ in (0, 1)), 1.0 / (1 + step)])
    store.write(step, numbers, alarms)


def test_the_page_follows_a_watched_run(open_view: Open, tmp_path: Path) -> None:
    store = watched(tmp_path / "watch", 20)
    page = open_view(tmp_path / "watch").page
    page.wait_for_selector("#heat")
    assert "Nothing wrong" in page.inner_text(".sentence")
    assert page.locator("#tabs button").count() == 1
    assert "live" in page.inner_text("#living")
    until(page, "document.getElementById('curve_name').textContent === 'Curve: loss'")
    page.select_option("#statistic", "norm")
    until(page, "document.getElementById('curve_name').textContent.includes('grad/layer0')")
    box = page.locator("#heat").bounding_box()
    page.mouse.click(box["x"] + 500, box["y"] + 40)
    until(page, "document.getElementById('curve_name').textContent.includes('grad/layer2.weight')")
    page.select_option("#statistic", "nan")
    until(page, "document.getElementById('statistic').value === 'nan'")
    sentence = "the gradient of layer1.weight is not finite"
    write(store, 20, (Alarm(20, "nan", "grad", "layer1.weight", sentence, position=1),))
    until(page, f"document.querySelector('.sentence').textContent.includes({json.dumps(sentence)})")
    page.wait_for_selector("#alarms")
    page.locator("#alarms button").first.click()
    until(page, "document.getElementById('curve_name').textContent.includes('grad/layer1.weight')")
    write(store, 21, (Alarm(21, "loss_spike", "scalar", "loss", "At step 21 the loss jumped."),))
    page.wait_for_selector("#alarms button:text-is('loss')")
    page.locator("#alarms button:text-is('loss')").click()
    until(page, "document.getElementById('curve_name').textContent === 'Curve: loss'")
    until(page, "document.getElementById('statistic').value === 'value'")
    store.close()
    until(page, "document.getElementById('living') === null")


def test_the_first_alarm_is_shown_before_anything_is_clicked(open_view: Open, tmp_path: Path) -> None:
    store = watched(tmp_path / "watch", 20)
    write(store, 20, (Alarm(20, "loss_spike", "scalar", "loss", "At step 20 the loss jumped."),))
    store.close()
    page = open_view(tmp_path / "watch").page
    until(page, "document.getElementById('curve_name').textContent === 'Curve: loss'")
    assert page.locator("#curve_legend span").all_inner_texts() == ["rank 0", "alarm"]


def test_a_run_that_has_ended_is_not_live_and_is_read_once(tmp_path: Path, serve: Any) -> None:
    from msprobe.view import routes

    watched(tmp_path / "watch", 20).close()
    session = serve(tmp_path / "watch", fresh=True).session
    for _ in range(3):
        for read in (routes.answer, routes.trends, routes.pulse):
            found = json.loads(read(session, {}).body)
        session._next_look = 0.0
        assert (found["version"], found["living"]) == (1, False)
    killed = watched(tmp_path / "killed", 20)  # it never closes: only its age tells
    session = serve(tmp_path / "killed", fresh=True).session
    assert session.is_living
    killed._database.execute("UPDATE steps SET time = time - 100000")
    assert not session.is_living
    killed.close()


def test_the_heatmap_shows_the_rank_that_is_chosen(open_view: Open, tmp_path: Path) -> None:
    for rank, steps in ((0, 20), (1, 12)):
        watched(tmp_path / "watch", steps, rank).close()
    page = open_view(tmp_path / "watch").page
    page.wait_for_selector("#rank")
    assert page.locator("#rank option").all_inner_texts() == ["0", "1"]

    def tip_at_the_end() -> str:
        page.evaluate("document.getElementById('heat')?.scrollIntoView()")
        box = page.locator("#heat").bounding_box()
        if box is None:  # it is being drawn anew
            return ""
        page.mouse.move(box["x"] + box["width"] - 4, box["y"] + 40)
        found: str = page.text_content("#tip") or ""
        return found

    page.select_option("#statistic", "norm")
    wait_until(lambda: "step 19: " in tip_at_the_end())
    page.select_option("#rank", "1")
    wait_until(lambda: "step 11: " in tip_at_the_end())


def test_two_watched_runs_and_an_export(open_view: Open, tmp_path: Path) -> None:
    from msprobe.cli import main

    watched(tmp_path / "a", 20).close()
    watched(tmp_path / "b", 20).close()
    page = open_view(tmp_path / "a", tmp_path / "b").page
    page.wait_for_selector("#heat")
    page.locator("#heat").focus()
    page.keyboard.press("ArrowDown")
    until(page, "document.querySelectorAll('#curve_legend span').length === 2")
    assert main(["view", str(tmp_path / "a"), "--export", str(tmp_path / "a.html")]) == 0
    page = open_view(tmp_path / "a.html").page
    page.wait_for_selector("#heat")
    page.locator("#heat").focus()
    page.keyboard.press("ArrowDown")
    until(page, "document.querySelectorAll('#curve_legend span').length === 1")
