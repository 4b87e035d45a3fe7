"""Tables and the progress bar, into a pipe and on a real terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from msprobe.report.terminal import print_table, printable, progress


def on_a_terminal(code: str) -> str:
    """What a script shows on a terminal 80 columns wide."""
    controller, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=terminal, stderr=terminal, env=environment)
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


def test_a_table_into_a_pipe_is_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    name = "Module." + "x" * 300
    print_table(["name", "count", "norm"], [[name, 12, 0.1234567], ["[red]b", 3, float("nan")]], "Title")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["", "Title"]
    assert lines[2] == "name" + " " * 303 + "  count      norm"
    assert lines[3] == name + "     12  0.123457"
    assert lines[4] == "[red]b" + " " * 301 + "      3       nan"


NARROW = """
from msprobe.report.terminal import print_table
print_table(["verdict", "name", "why"], [["error", "Module." + "y" * 60 + ".Linear.forward.0", "maximum differs"]])
"""


def test_rows_that_do_not_fit_become_blocks_and_no_name_is_split() -> None:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal(NARROW))
    assert plain.splitlines() == [
        "verdict  error",
        "name     Module." + "y" * 60 + ".Linear.forward.0",
        "why      maximum differs",
        "",
    ]


def test_a_table_that_fits_is_aligned_and_coloured_by_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from msprobe.report.terminal import print_table; print_table(['verdict', 'n'], [['error', 1], ['pass', 2]])"
    lines = on_a_terminal(code).splitlines()
    assert lines[0] == "\x1b[1mverdict  n\x1b[0m"
    assert lines[1] == "\x1b[31merror    1\x1b[0m"
    assert lines[2] == "\x1b[32mpass     2\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in on_a_terminal(code)


def test_an_answer_is_broken_between_words_only() -> None:
    path = "/home/you/" + "z" * 40 + "/train.py:12"
    code = (
        "from msprobe.report.terminal import print_lines\n"
        f"print_lines(['Origin: ' + 'word ' * 20, '  source  {path} in forward'])"
    )
    plain = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal(code))
    assert path in plain
    assert max(len(line) for line in plain.splitlines()) <= 80
    assert plain.replace("\r\n", " ").count("word") == 20


@pytest.mark.parametrize(
    ("text", "shown"), [("a b", "a b"), ("a\x1b[2J", "a\\x1b[2J"), ("é中", "é中"), ("\u202e", "\\u202e")]
)
def test_control_characters_are_shown_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_the_bar_comes_only_on_a_terminal_and_only_when_it_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress(range(3), 3, "reading")) == [0, 1, 2]
    assert capsys.readouterr().err == ""
    code = (
        "from msprobe.report import terminal\n"
        "terminal._SHOW_BAR_AFTER = {}\n"
        "print(sum(terminal.progress(range(50), 50, 'reading')))\n"
    )
    assert on_a_terminal(code.format(60)) == "1225\r\n"
    shown = on_a_terminal(code.format(0))
    assert "reading" in shown
    assert "1225" in shown
