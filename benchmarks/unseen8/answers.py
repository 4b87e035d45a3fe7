"""One comparison, as plain values: what a user reads, and what a program reads."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any


def plain(target: Path, golden: Path) -> dict[str, Any]:
    """Runs `msprobe compare` as a user does, once for the text; the verdict is that of the exit code."""
    from msprobe.cli import main

    text = io.StringIO()
    summary = target.parent / "rows.jsonl"
    with contextlib.redirect_stdout(text):
        try:
            code: Any = main(["compare", str(target), str(golden), "--json", str(summary)])
        except SystemExit as end:
            code = end.code
    with summary.open() as lines:
        first = json.loads(lines.readline())
    return {
        "verdict": {0: "same", 1: "differs", 2: "in part"}.get(code or 0, str(code)),
        "origin": first.get("origin"),
        "text": text.getvalue()[:4000],
    }
