"""Headless Chromium over its debugging pipe: enough to open a file, run a script in it and read the answer.

Installed from Debian's package when missing; a test that cannot have it is skipped, and says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Optional

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> Optional[str]:
    found = next((path for path in map(shutil.which, _NAMES) if path), None)
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "install", "-y", "chromium"], capture_output=True, timeout=600, check=False)
        found = shutil.which("chromium")
    return found


class Page:
    """One page of one browser; use as a context."""

    def __init__(self, path: Path) -> None:
        chromium = find_chromium()
        if chromium is None:
            pytest.skip("Chromium cannot be had here: the HTML report was NOT tested in a browser")
        self._profile = tempfile.TemporaryDirectory()
        to_browser, from_us = os.pipe()
        from_browser, to_us = os.pipe()

        def wire() -> None:
            # Above 4 first: the pipes may themselves be numbered 3 and 4.
            kept = os.dup(to_browser), os.dup(to_us)
            os.dup2(kept[0], 3)
            os.dup2(kept[1], 4)

        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,900", "--no-first-run"]
        self._process = subprocess.Popen(
            [chromium, *options, f"--user-data-dir={self._profile.name}", "--remote-debugging-pipe", path.as_uri()],
            preexec_fn=wire,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(to_us)
        self._in, self._out = os.fdopen(from_us, "wb"), os.fdopen(from_browser, "rb")
        self._number = 0
        self._buffer = b""
        self._session: Optional[str] = None
        self.faults: list[str] = []
        self._attach()

    def _attach(self) -> None:
        for _ in range(100):
            targets = self._ask("Target.getTargets")["targetInfos"]
            pages = [target for target in targets if target["type"] == "page"]
            if pages:
                break
        answer = self._ask("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
        self._session = answer["sessionId"]
        self._ask("Runtime.enable")
        for _ in range(600):
            if self.run("document.body && document.body.dataset.ready") == "yes":
                return
            time.sleep(0.05)
        raise AssertionError(f"the page never became ready: {self.faults}")

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._in.write(json.dumps(message).encode() + b"\0")
        self._in.flush()
        while True:
            while b"\0" not in self._buffer:
                chunk = os.read(self._out.fileno(), 1 << 16)
                assert chunk, "the browser is gone"
                self._buffer += chunk
            text, _, self._buffer = self._buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("method") == "Runtime.exceptionThrown":
                self.faults.append(json.dumps(answer["params"]["exceptionDetails"])[:500])
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                found: dict[str, Any] = answer["result"]
                return found

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self._in.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._out.close()
        self._profile.cleanup()
