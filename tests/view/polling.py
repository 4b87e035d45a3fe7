"""Waiting for the page. Playwright's own `wait_for_function` needs eval in the page, which its policy refuses."""

from __future__ import annotations

import time
from typing import Any

LONGEST = 30.0


def until(page: Any, expression: str) -> None:
    """Asks until the expression is true."""
    end = time.monotonic() + LONGEST
    while not page.evaluate(f"(() => {{ try {{ return {expression}; }} catch {{ return false; }} }})()"):
        assert time.monotonic() < end, f"never true: {expression}"
        time.sleep(0.02)
