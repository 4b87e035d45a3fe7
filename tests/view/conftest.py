"""One headless Chromium for all tests of the view, and servers in this process for it to open.

Chromium is Debian's (`apt-get install chromium`); tests that need it are skipped where there is none, and say so.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Optional

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "compare"))
sys.path.insert(0, str(Path(__file__).parent.parent / "report"))

from browser import find_chromium

from msprobe.view.server import ViewServer
from msprobe.view.session import Session

NO_BROWSER = "no Chromium here: msprobe view was NOT tested in a browser (apt-get install chromium)"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    path = find_chromium()
    if path is None:
        pytest.skip(NO_BROWSER)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page with what went wrong in it."""

    def __init__(self, browser: Any, address: str, cookie: Optional[dict[str, str]], **options: Any) -> None:
        settings = {"viewport": {"width": 1280, "height": 800}, "locale": "en-US", **options}
        self.context = browser.new_context(**settings)
        if cookie is not None:
            self.context.add_cookies([cookie])
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda line: self.faults.append(line.text) if line.type == "error" else None)
        self.address = address
        self.page.goto(address)
        self.page.wait_for_selector("body[data-ready=yes]")

    def text(self, selector: str) -> str:
        found: str = self.page.inner_text(selector)
        return found

    def close(self) -> None:
        self.context.close()
        assert self.faults == []


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., ViewServer]]:
    """A server for one or two paths, shared by the tests of a module unless `fresh`; it ends with the module."""
    started: list[ViewServer] = []
    known: dict[tuple[Path, Optional[Path]], ViewServer] = {}

    def start(target: Path, golden: Optional[Path] = None, fresh: bool = False) -> ViewServer:
        if not fresh and (target, golden) in known:
            return known[target, golden]
        server = ViewServer(Session(target, golden))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        started.append(server)
        if not fresh:
            known[target, golden] = server
        return server

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


@pytest.fixture
def open_view(chromium: Any, serve: Callable[..., ViewServer]) -> Iterator[Callable[..., Opened]]:
    """Opens the view of one or two paths (or an exported file) in a fresh context; faults of the page fail the test."""
    opened: list[Opened] = []

    def start(target: Path, golden: Optional[Path] = None, fresh: bool = False, **options: Any) -> Opened:
        if target.suffix == ".html":
            opened.append(Opened(chromium, target.as_uri(), None, **options))
            return opened[-1]
        server = serve(target, golden, fresh)
        address = f"http://127.0.0.1:{server.port}/"
        cookie = {"name": server.cookie, "value": server.secret, "url": address}
        opened.append(Opened(chromium, server.address if fresh else address, None if fresh else cookie, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.close()
