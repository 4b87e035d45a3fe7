"""`make screenshots`: the main views at two sizes and in two themes, one in Chinese, as small PNGs in docs/images.

Look at them after a change of the page. Needs Chromium, playwright, Pillow and a Chinese font (fonts-noto-cjk).
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
OUTPUT = ROOT / "docs" / "images"
SIZES = {"1280": (1280, 800), "1920": (1920, 1080)}
COLOURS = 255
TRAIN = """
if __name__ == "run":
    train(Path(place), float(sys.argv[2]))
"""
sys.path[:0] = [str(HERE), str(HERE.parent / "compare")]

from msprobe.view.server import ViewServer  # noqa: E402
from msprobe.view.session import Session  # noqa: E402

# name of the view, dumps, the keys that lead there, what must be on screen then
ANSWER = ("answer", "demo", (), "#answer .excerpt")
VIEWS = (
    ("proof", "proof", (), "#proof"),
    ("watched", "watched", (), "#alarms"),
    ("rows", "demo", ("Enter", "b"), "#path"),
    ANSWER,
    ("tensor", "tensors", ("Enter", "o"), "#worst"),
    ("trends", "ranks", ("Enter", "3"), "#curve_legend span"),
    ("ranks", "ranks", ("Enter", "4"), "#collective_list button"),
)


def load(name: str, path: Path) -> Any:
    """A module from a file that is not where Python looks for it."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_dumps(root: Path) -> dict[str, tuple[Path, ...]]:
    """The scripts run from a directory of their own: pictures have no path, name or command of this machine."""
    script = (ROOT / "examples" / "demo.py").read_text()
    (root / "train.py").write_text(script + TRAIN)
    shutil.copy(HERE.parent / "compare" / "planted.py", root / "model.py")
    load("planted", root / "model.py")
    from dumps import planted_pair, ranks_dump

    socket.gethostname = lambda: "node1"
    for name, eps in (("golden", "1e-5"), ("target", "1e-3")):
        sys.argv[:] = ["train.py", "--eps", eps]
        runpy.run_path("train.py", {"place": name}, "run")  # this file is in no stack that is shown
    sys.argv[:] = ["train.py"]
    return {
        "demo": (Path("target"), Path("golden")),
        "tensors": planted_pair(Path("tensors"), "changed activation", task="tensor"),
        "ranks": (ranks_dump(Path("ranks/target"), wrong_rank=1), ranks_dump(Path("ranks/golden"))),
        "proof": (make_proof(Path("proof")),),
        "watched": (make_watched(Path("watch")),),
    }


def make_proof(path: Path) -> Path:
    """A real proof, of a script with two faults."""
    script = load("faulty", HERE.parent / "rerun" / "faulty.py").SCRIPT
    Path("net.py").write_text(script)
    run = [sys.executable, "-m", "msprobe"]
    steps = [*run, "run", "-o", "good", "--step", "0-1", "--task", "tensor", "net.py"]
    subprocess.run(steps, check=True, capture_output=True)
    done = [*run, "prove", "--golden", "good", "-o", str(path), "net.py", "eps,divisor"]
    subprocess.run(done, check=True, capture_output=True)
    for file in path.rglob("run.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "hostname": "node1"}))
    return path


def make_watched(path: Path) -> Path:
    """A training whose learning rate is too high from step 60 on."""
    import torch

    from msprobe.pytorch import Monitor

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    monitor = Monitor(model, optimizer, {"dump_path": str(path)})
    for step in range(90):
        if step == 60:
            optimizer.param_groups[0]["lr"] = 4.0
        batch = torch.randn(64, 8)
        loss = (model(batch) - batch.sum(1, keepdim=True).sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss=loss)
    monitor.close()
    return path


def has_chinese_font() -> bool:
    found = subprocess.run(["fc-list", ":lang=zh"], capture_output=True, text=True, check=False).stdout
    if not found:
        print("no Chinese font here: the Chinese picture is not taken (apt-get install fonts-noto-cjk)")
    return bool(found)


def save(picture: bytes, path: Path) -> None:
    """With few colours a picture is a third of the size and looks the same."""
    from PIL import Image

    image = (
        Image.open(io.BytesIO(picture))
        .convert("RGB")
        .quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    )
    image.save(path, optimize=True)


def take(browser: Any, server: ViewServer, view: tuple[Any, ...], size: str, theme: str, locale: str = "en-US") -> None:
    name, _, keys, wanted = view
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme, locale=locale)
    address = f"http://127.0.0.1:{server.port}/"
    context.add_cookies([{"name": server.cookie, "value": server.secret, "url": address}])
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("body[data-ready=yes]")
    for key in keys:
        page.keyboard.press(key)
        page.wait_for_timeout(500)
    page.wait_for_selector(wanted)
    page.wait_for_timeout(500)
    language = "" if locale == "en-US" else f"_{locale[:2]}"
    save(page.screenshot(), OUTPUT / f"view_{name}_{size}_{theme}{language}.png")
    context.close()


def main() -> None:
    from playwright.sync_api import sync_playwright

    OUTPUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="demo") as folder, sync_playwright() as playwright:
        os.chdir(folder)
        dumps = make_dumps(Path(folder).resolve())
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, paths in dumps.items():
            server = ViewServer(Session(paths[0], paths[1] if len(paths) > 1 else None))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            for view in VIEWS:
                for size in SIZES:
                    for theme in ("light", "dark") if view[1] == name else ():
                        take(browser, server, view, size, theme)
            if name == "demo" and has_chinese_font():
                take(browser, server, ANSWER, "1280", "light", "zh-CN")
            server.shutdown()
        browser.close()
        os.chdir(ROOT)
    for path in sorted(OUTPUT.glob("view_*.png")):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size >> 10} kB")


if __name__ == "__main__":
    main()
