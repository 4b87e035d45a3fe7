"""Lines, shortened names and the progress bar, into a pipe and on a real terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.report.progress import progress
from msprobe.report.terminal import print_lines, printable, shorten, shorten_name, shorten_path, text_width


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


def test_an_answer_is_broken_between_words_and_never_wider_than_the_terminal() -> None:
    path = "/home/you/" + "z" * 40 + "/train.py:12"
    long = "/home/you/" + "z" * 90 + "/train.py:12"
    code = (
        "from msprobe.report.terminal import print_lines\n"
        f"print_lines(['Origin: ' + 'word ' * 20, '  source  {path} in forward', '  source  {long} in forward'])"
    )
    plain = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal(code))
    assert path in plain
    assert "zzz…zzz" in plain
    assert plain.count("/train.py:12") == 2
    assert max(len(line) for line in plain.splitlines()) <= 80
    assert plain.replace("\r\n", " ").count("word") == 20


LORA = "Module.base_model.model.model.layers.1.self_attn.v_proj.lora.Linear.forward.0.output.0"


@pytest.mark.parametrize(
    ("name", "room", "shown"),
    [
        (LORA, 100, LORA),
        (LORA, 81, "Module.base_model.model.model.layers.1.self_attn.v_proj.lora.…forward.0.output.0"),
        (LORA, 60, "…b.m.model.layers.1.self_attn.v_proj.lora.…fwd.0.output.0"),
        (LORA, 44, "…b.m.m.l.1.s.v_proj.lora.…fwd.0.output.0"),
        (
            "Functional.scaled_dot_product_attention.0.forward.input.0",
            45,
            "…scaled_dot_product_attention.0.fwd.input.0",
        ),
        ("model.layers.1.input_layernorm.weight", 34, "m.layers.1.input_layernorm.weight"),
        ("model.layers.11.self_attn.q_proj.weight", 29, "m.l.11.s.q_proj.weight"),
        ("norm 0.041667000000", 12, "norm…7000000"),
        ("a" * 50, 20, "aaaaaaa…aaaaaaaaaaaa"),
        ("注" * 30, 20, "注注注…注注注注注注"),
    ],
)
def test_a_name_is_shortened_in_the_middle_and_keeps_what_distinguishes_it(name: str, room: int, shown: str) -> None:
    assert shorten_name(name, room) == shown
    assert text_width(shown) <= room


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("ab.注…e\u0301"), max_size=60), st.integers(2, 40))
def test_what_is_shortened_fits(text: str, room: int) -> None:
    for change in (shorten, shorten_name, shorten_path):
        assert text_width(change(text, room)) <= max(room, 3)
        if text_width(text) <= room:
            assert change(text, room) == text


def test_a_place_in_a_file_keeps_its_line() -> None:
    assert shorten_path("/a/long/path/to/train.py:12 (loss.backward())", 24) == "…ong/path/to/train.py:12"
    assert shorten_path("/a/train.py:12 (loss.backward())", 24) == "/a/train.py:12"


@pytest.mark.parametrize(
    ("text", "shown"), [("a b", "a b"), ("a\x1b[2J", "a\\x1b[2J"), ("é中", "é中"), ("\u202e", "\\u202e")]
)
def test_control_characters_are_shown_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_the_bar_comes_only_on_a_terminal_and_only_when_it_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress(range(3), 3, "reading")) == [0, 1, 2]
    assert capsys.readouterr().err == ""
    code = (
        "from msprobe.report import progress\n"
        "progress._SHOW_BAR_AFTER = {}\n"
        "print(sum(progress.progress(range(50), 50, 'reading')))\n"
    )
    assert on_a_terminal(code.format(60)) == "1225\r\n"
    shown = on_a_terminal(code.format(0))
    assert "reading" in shown
    assert "1225" in shown


def test_a_bar_moves_within_an_item_whose_work_shows_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    from msprobe.report import progress as module

    seen: list[float] = []
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(module._Bar, "update", lambda bar: seen.append(bar.done))
    for _ in progress(range(2), 2, "comparing"):
        for _ in progress(range(4), 4, "reading tensors"):
            pass
    assert seen == sorted(seen)
    assert {0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0} <= set(seen)
    assert module._bar is None


def test_a_long_answer_ends_with_its_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    for count in (24, 25):
        lines = ["Proved: the answer", *(f"  cause {place}" for place in range(1, count))]
        print_lines(lines)
        again = lines[:1] if count == 25 else []
        assert capsys.readouterr().out.splitlines() == [*lines, *again]
        print_lines(lines, bold=False)
        assert capsys.readouterr().out.splitlines() == lines
