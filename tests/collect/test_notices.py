"""Lines of the log on a terminal that also shows a progress bar."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

SCRIPT = """
from tqdm import tqdm
from msprobe.collect.notices import inform
for step in tqdm(range(2), desc="training", mininterval=0):
    inform(f"step {step}: written.")
"""


def on_a_terminal(code: str) -> str:
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(controller, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(controller)
    assert process.wait(60) == 0
    return shown.decode()


def test_a_line_does_not_continue_the_bar_of_tqdm() -> None:
    pytest.importorskip("tqdm")
    shown = re.split(r"[\r\n]+", on_a_terminal(SCRIPT))
    for step in (0, 1):
        place = shown.index(f"[msprobe] INFO: step {step}: written.")
        assert len(shown[place - 1]) > 60, "the bar was not wiped"
        assert shown[place - 1].isspace()
        assert shown[place + 1].startswith("training: "), "the bar was not drawn again"


def test_nor_in_a_log() -> None:
    pytest.importorskip("tqdm")
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, timeout=60, check=True)
    lines = re.split(r"[\r\n]+", done.stderr.decode())
    assert [line for line in lines if "[msprobe]" in line] == [f"[msprobe] INFO: step {n}: written." for n in (0, 1)]


def test_a_bar_that_fails_costs_no_line() -> None:
    code = """
import sys, types
class Broken:
    @classmethod
    def external_write_mode(cls, **options):
        raise RuntimeError("bars changed")
sys.modules["tqdm"] = types.SimpleNamespace(tqdm=Broken)
from msprobe.collect.notices import inform
inform("written.")
"""
    assert on_a_terminal(code) == "[msprobe] INFO: written.\r\n"
