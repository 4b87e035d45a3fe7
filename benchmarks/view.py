"""The cost of `msprobe view` at 200,000 rows: two dumps of 100 steps, opened in headless Chromium.

python benchmarks/view.py [--rows N] [--steps N]

Needs Chromium and playwright. CPU times are of processes; "after the comparison" leaves out `compare` itself, which
benchmarks/compare.py measures. A frame is the time between two animation frames while the page scrolls or filters.
On a busy machine it is as long as the page waits for a core; the CPU time of the longest task of the page does not
depend on that.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

APIS = ("linear", "relu", "layer_norm", "softmax", "dropout")
FRAMES = """async (work) => {
    const act = eval(work), gaps = []; let last = performance.now(), busy = 0;
    for (let turn = 0; turn < 90; turn++) {
        const before = performance.now(); act(turn); busy = Math.max(busy, performance.now() - before);
        await new Promise(done => requestAnimationFrame(done));
        const now = performance.now(); gaps.push(now - last); last = now;
    }
    gaps.sort((a, b) => a - b);
    return {longest: gaps.at(-1), middle: gaps[45], high: gaps[85]};
}"""
SCROLL = "turn => { document.getElementById('scroll').scrollTop = turn * 9000 * 24 / 4 }"
FILTER = """turn => { if (turn % 6) return; const box = document.getElementById('search');
    box.value = ['', 'linear', 'relu.1*output', 'maximum', 'layers.3', 'norm.2.forward'][turn / 6 % 6];
    box.dispatchEvent(new Event('input')) }"""


TRACED = ["toplevel", "devtools.timeline", "blink.user_timing", "loading", "disabled-by-default-devtools.timeline"]


def tensor(value: float) -> dict[str, Any]:
    figures = {"Max": value * 3, "Min": -value * 2.5, "Mean": value * 0.01, "Norm": value * 50}
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [8, 16], **figures, "requires_grad": True}


def write(root: Path, rows: int, steps: int, drift: float) -> Path:
    for step in range(steps):
        numbers = random.Random(step)
        data: dict[str, Any] = {}
        construct: dict[str, Any] = {}
        for index in range(rows // steps // 4):
            api = APIS[index % 5]
            name = f"Functional.{api}.{index // 5}.forward"
            a, b, c = (numbers.random() + 0.5 for _ in range(3))
            off = 1 + drift if step >= steps // 2 and index > 100 else 1.0
            data[name] = {
                "input_args": [tensor(a * off), tensor(b), {"type": "float", "value": 1e-5}],
                "input_kwargs": {},
                "output": [tensor(c * off)],
            }
            construct[name] = f"Module.layers.{index // 20}.{api}.Layer.forward.0"
        directory = root / f"step{step}" / "rank"
        directory.mkdir(parents=True)
        head = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None, "data": data}
        (directory / "dump.json").write_text(json.dumps(head))
        (directory / "construct.json").write_text(json.dumps(construct))
        frames = [
            "File train.py, line 7, in forward, \n x = layer(x)",
            "File /usr/lib/python3/site-packages/t.py, line 1, in f",
        ]
        (directory / "stack.json").write_text(json.dumps({"0": [list(data), frames]}))
    return root


def serve(target: str, golden: str) -> None:
    """The server in a process of its own; prints its address, then on each line of input what it cost."""
    from msprobe.compare import equal_units
    from msprobe.view import session
    from msprobe.view.server import ViewServer

    compared = 0.0
    opened = session.open_material

    def timed(*given: Any) -> Any:
        nonlocal compared
        begun = time.process_time()
        before = compared
        material = opened(*given)
        compared = before + time.process_time() - begun
        return material

    made = equal_units._RemadeGroups._made

    def timed_rows(groups: Any) -> Any:
        """Equal units are compared when their rows are asked for: this is comparing too."""
        nonlocal compared
        begun = time.process_time()
        rows = made(groups)
        compared += time.process_time() - begun
        return rows

    equal_units._RemadeGroups._made = timed_rows
    session.open_material = timed
    server = ViewServer(session.Session(Path(target), Path(golden)))
    print(server.address, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for _ in sys.stdin:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        found = {
            "compare": compared,
            "after": time.process_time() - compared,
            "peak": memory,
            "now": resident(os.getpid()),
        }
        print(json.dumps(found), flush=True)


def resident(process: int) -> int:
    """Megabytes of memory of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def measure(target: Path, golden: Path) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    words = [sys.executable, __file__, "--serve", str(target), str(golden)]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_context(viewport={"width": 1600, "height": 900}, bypass_csp=True).new_page()
            browser.start_tracing(page=page, categories=TRACED)
            page.goto(address)
            page.wait_for_selector("body[data-ready=yes]", timeout=120_000)
            loading = browser.stop_tracing()
            server.stdin.write("\n")
            server.stdin.flush()
            found: dict[str, Any] = json.loads(server.stdout.readline())
            processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
            renderer = max((one for one in processes if one["type"] == "renderer"), key=lambda one: one["cpuTime"])
            paint = "performance.getEntriesByType('paint').find(e => e.name === 'first-contentful-paint')?.startTime"
            found.update(page_cpu=renderer["cpuTime"], paint=page.evaluate(paint))
            page.wait_for_timeout(500)
            found["rows"] = page.inner_text("#count")
            found["paint_cpu"] = cpu_until_paint(loading, found["paint"])
            for kind, act in (("scroll", SCROLL), ("filter", FILTER)):
                browser.start_tracing(page=page, categories=TRACED)
                found[kind] = page.evaluate(FRAMES, act)
                found[kind]["task"] = max(spent for _, spent in tasks(main_thread(browser.stop_tracing())))
            found["page_memory"] = resident(renderer["id"])
            found["work"] = {name: work_of(page, act) for name, act in (("scroll", SCROLL), ("filter", FILTER))}
            browser.close()
        return found
    finally:
        server.stdin.close()
        server.wait(timeout=30)


def main_thread(trace: bytes, event_of_it: str = "") -> list[dict[str, Any]]:
    """The events of the page's main thread: the busiest one (of those that have a certain event)."""
    events = json.loads(trace)["traceEvents"]
    threads = {
        (e["pid"], e["tid"]) for e in events if e["name"] == "thread_name" and "CrRendererMain" in str(e["args"])
    }
    if event_of_it:
        threads &= {(e["pid"], e["tid"]) for e in events if e["name"] == event_of_it}
    spent = dict.fromkeys(threads, 0)
    for event in events:
        if (event["pid"], event["tid"]) in spent:
            spent[event["pid"], event["tid"]] += event.get("tdur", 0)
    main = max(spent, key=lambda thread: spent[thread])
    return [event for event in events if (event["pid"], event["tid"]) == main]


def tasks(events: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """When each task of a thread began, and its CPU time in milliseconds."""
    return [(e["ts"], e["tdur"] / 1000) for e in events if e["name"].endswith("RunTask") and "tdur" in e]


def cpu_until_paint(trace: bytes, paint: float) -> float:
    """Milliseconds of CPU of the main thread, from the request of the page to its first paint, `paint` later."""
    events = main_thread(trace, "navigationStart")
    asked = max(event["ts"] for event in events if event["name"] == "navigationStart")
    return sum(spent for begun, spent in tasks(events) if asked <= begun <= asked + 1000 * paint)


def work_of(page: Any, act: str) -> float:
    """Milliseconds of script for one action, from a sampling profile: what the page itself does in it."""
    session = page.context.new_cdp_session(page)
    session.send("Profiler.enable")
    session.send("Profiler.start")
    turns = range(0, 36, 6)
    for turn in turns:
        wait = "await new Promise(done => setTimeout(done, 400))"
        page.evaluate(f"async ([work, turn]) => {{ eval(work)(turn); {wait} }}", [act, turn])
    profile = session.send("Profiler.stop")["profile"]
    names = {node["id"]: node["callFrame"]["functionName"] for node in profile["nodes"]}
    samples = zip(profile["samples"], profile["timeDeltas"])
    return (
        sum(spent for node, spent in samples if names[node] not in ("(idle)", "(program)", "(root)"))
        / 1000
        / len(turns)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(*args.serve)
        return
    with tempfile.TemporaryDirectory() as folder:
        target = write(Path(folder) / "target", args.rows, args.steps, 1e-2)
        golden = write(Path(folder) / "golden", args.rows, args.steps, 0.0)
        rounds = [measure(target, golden) for _ in range(args.rounds)]

    def middle(read: Any) -> float:
        return statistics.median(read(one) for one in rounds)

    print(f"{rounds[0]['rows']}, median of {args.rounds}")
    print(f"CPU of the comparison itself        {middle(lambda r: r['compare']):8.2f} s")
    print(f"CPU of the server after it          {middle(lambda r: r['after']):8.2f} s")
    print(f"CPU of the page until it is usable  {middle(lambda r: r['page_cpu']):8.2f} s")
    print(f"first paint after the request       {middle(lambda r: r['paint']):8.0f} ms")
    print(f"CPU of the page until it            {middle(lambda r: r['paint_cpu']):8.0f} ms")
    for kind in ("scroll", "filter"):
        longest, high = middle(lambda r, k=kind: r[k]["longest"]), middle(lambda r, k=kind: r[k]["high"])
        print(f"longest frame, {kind:<8}             {longest:8.0f} ms (95 of 100 under {high:.0f} ms)")
        print(f"CPU of its longest task, {kind:<8}   {middle(lambda r, k=kind: r[k]['task']):8.0f} ms")
        print(f"script of one {kind:<8}              {middle(lambda r, k=kind: r['work'][k]):8.0f} ms")
    print(f"memory of the page's process        {middle(lambda r: r['page_memory']):8.0f} MB")
    now, peak = middle(lambda r: r["now"]), middle(lambda r: r["peak"])
    print(f"memory of the server, now / peak    {now:8.0f} MB / {peak:.0f} MB")


if __name__ == "__main__":
    main()
