"""A real terminal: a command runs in tmux, and the test reads the last screen."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

DONE = "exit-code-"


class Captured:
    """`last` is the screen when the command has ended, without the prompt; `lines` is all that was printed, with lines
    that the terminal had to break joined again."""

    def __init__(self, last: list[str], lines: list[str], code: int) -> None:
        self.last, self.lines, self.code = last, lines, code


def capture(words: list[str], size: tuple[int, int], home: Path, place: Path) -> Captured:
    """Runs `msprobe WORDS` in the directory `place`, on a terminal of `size` (columns, lines)."""
    columns, lines = size
    name = home / "tmux.socket"
    command = shlex.join([sys.executable, "-m", "msprobe", *words])
    tmux = ["tmux", "-S", str(name), "-f", "/dev/null"]
    shell = f"clear; {command}; echo {DONE}$?; sleep 600"
    environment = {**os.environ, "TERM": "screen", "LC_ALL": "C.UTF-8"}
    for key in ("COLUMNS", "LINES", "NO_COLOR", "TMUX"):
        environment.pop(key, None)
    subprocess.run(
        [*tmux, "new-session", "-d", "-x", str(columns), "-y", str(lines), f"sh -c {shlex.quote(shell)}"],
        env=environment, cwd=place, check=True, timeout=60,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 180
        while DONE not in (text := _pane(tmux)):
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        everything = _pane(tmux, "-J", "-S", "-")
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, capture_output=True)
    last = text.splitlines()
    end = next(place for place, line in enumerate(last) if line.startswith(DONE))
    printed = everything.splitlines()
    code = int(last[end][len(DONE) :])
    whole = next(place for place, line in enumerate(printed) if line.startswith(DONE))
    return Captured(last[:end], [line.rstrip() for line in printed[:whole]], code)


def _pane(tmux: list[str], *options: str) -> str:
    return subprocess.run([*tmux, "capture-pane", "-p", *options], check=True, capture_output=True, text=True).stdout
