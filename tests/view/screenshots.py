"""`make screenshots`: the main views at two sizes and in two themes, one in Chinese, as small PNGs in docs/images.

Look at them after a change of the page. Needs Chromium, playwright, Pillow and a Chinese font (fonts-noto-cjk).
"""

from __future__ import annotations

import io
import runpy
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
OUTPUT = ROOT / "docs" / "images"
SIZES = {"1280": (1280, 800), "2560": (2560, 1440)}
COLOURS = 255
sys.path[:0] = [str(HERE), str(HERE.parent / "compare")]

from dumps import planted_pair, ranks_dump  # noqa: E402

from msprobe.view.server import ViewServer  # noqa: E402
from msprobe.view.session import Session  # noqa: E402

# name of the view, dumps, the keys that lead there, what must be on screen then
ANSWER = ("answer", "demo", (), "#answer .excerpt")
VIEWS = (
    ("rows", "demo", ("Enter", "b"), "#path"),
    ANSWER,
    ("tensor", "tensors", ("Enter", "o"), "#worst"),
    ("trends", "ranks", ("Enter", "3"), "#curve_legend span"),
    ("ranks", "ranks", ("Enter", "4"), "#collective_list button"),
)


def make_dumps(root: Path) -> dict[str, tuple[Path, Path]]:
    script = root / "train.py"
    shutil.copy(ROOT / "examples" / "demo.py", script)
    train = runpy.run_path(str(script))["train"]
    train(root / "golden", 1e-5)
    train(root / "target", 1e-3)
    return {
        "demo": (root / "target", root / "golden"),
        "tensors": planted_pair(root / "tensors", "changed activation", task="tensor"),
        "ranks": (ranks_dump(root / "ranks" / "target", wrong_rank=1), ranks_dump(root / "ranks" / "golden")),
    }


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
        dumps = make_dumps(Path(folder).resolve())
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (target, golden) in dumps.items():
            server = ViewServer(Session(target, golden))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            for view in VIEWS:
                for size in SIZES:
                    for theme in ("light", "dark") if view[1] == name else ():
                        take(browser, server, view, size, theme)
            if name == "demo":
                take(browser, server, ANSWER, "1280", "light", "zh-CN")
            server.shutdown()
        browser.close()
    for path in sorted(OUTPUT.glob("view_*.png")):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size >> 10} kB")


if __name__ == "__main__":
    main()
