"""One screen: what is left out on a small terminal, and in which order; whole in a file, and with --all."""

from __future__ import annotations

import os
import sys

import pytest

from msprobe.report.screen import MARK, NAME, PATH, TEXT, Column, Screen
from msprobe.report.terminal import text_width

COLUMNS = (
    Column("verdict", MARK),
    Column("name", NAME),
    Column("norm", drop=2),
    Column("where", PATH, drop=1),
    Column("why", TEXT),
)


def row(place: int) -> list[object]:
    name = f"Module.model.decoder.layers.{place}.self_attention.query.Linear.forward.0.output.0"
    return ["error", name, 1.5 * place, f"/home/you/projects/training/train.py:{place} in forward", "maximum differs"]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Prints a screen as on a terminal of a size and returns its lines."""

    def shown(screen: Screen, columns: int, lines: int) -> list[str]:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((columns, lines)))
        monkeypatch.setenv("NO_COLOR", "1")
        screen.show()
        return capsys.readouterr().out.splitlines()

    return shown


def made(**options: object) -> Screen:
    screen = Screen(**options)  # type: ignore[arg-type]
    screen.say(["Origin: the answer"])
    for place in range(6):
        screen.say([f"  note {place}"], drop=1 if place >= 3 else 2)
    screen.table(COLUMNS, [row(place) for place in range(30)], "Rows that differ")
    screen.say(["the end"])
    return screen


def test_a_large_terminal_has_eight_rows_and_everything_else(terminal) -> None:
    lines = terminal(made(), 240, 60)
    assert lines[:7] == ["Origin: the answer", *(f"  note {place}" for place in range(6))]
    assert lines[8] == "Rows that differ: 8 of 30; --all prints all"
    assert lines[9].split() == ["verdict", "name", "norm", "where", "why"]
    assert len(lines) == 10 + 8 + 1


@pytest.mark.parametrize("size", [(80, 24), (80, 12), (120, 40), (40, 10), (200, 8)])
def test_it_never_needs_more_than_one_screen(terminal, size: tuple[int, int]) -> None:
    lines = terminal(made(), *size)
    assert len(lines) <= size[1] - 2
    assert max(map(text_width, lines)) <= size[0]
    assert lines[0] == "Origin: the answer"
    assert "the end" in lines


def test_rows_go_first_then_lines_in_their_order_then_the_table(terminal) -> None:
    fewer_rows = terminal(made(), 240, 17)
    assert sum(line.startswith("error") for line in fewer_rows) == 4
    assert "  note 5" in fewer_rows
    fewer_lines = terminal(made(), 240, 14)
    assert sum(line.startswith("error") for line in fewer_lines) == 3
    assert "  note 2" in fewer_lines
    assert "  note 5" not in fewer_lines
    assert fewer_lines[-1].startswith("… ")
    assert fewer_lines[-1].endswith(": --all")
    no_table = terminal(made(), 240, 7)
    assert no_table == [
        "Origin: the answer",
        "Rows that differ: 0 of 30; --all prints all",
        "the end",
        "… 6 lines of the answer left out: --all",
    ]


def test_columns_go_in_their_order_and_names_are_shortened_in_the_middle(terminal) -> None:
    def head(width: int) -> list[str]:
        lines = terminal(made(), width, 60)
        return lines[9].split()

    assert head(200) == ["verdict", "name", "norm", "where", "why"]
    assert head(85) == ["verdict", "name", "norm", "why"]
    assert head(62) == ["verdict", "name", "why"]
    lines = terminal(made(), 80, 60)
    names = [line.split()[1] for line in lines if line.startswith("error")]
    assert len(set(names)) == 8
    assert all("…" in name and name.endswith(".output.0") for name in names)


def test_an_empty_column_gives_its_place_to_the_others(terminal) -> None:
    screen = Screen()
    screen.table([Column("name", NAME), Column("role"), Column("n")], [["a", "", 1], ["b", None, 2]])
    assert terminal(screen, 80, 24)[1].split() == ["name", "n"]


def test_lines_that_follow_are_counted(terminal) -> None:
    assert len(terminal(made(reserved=5), 80, 24)) <= 24 - 2 - 5


def test_all_prints_every_row_whole_and_the_answer_again_at_the_end(terminal) -> None:
    lines = terminal(made(everything=True), 80, 24)
    assert sum(line.startswith("error") for line in lines) == 30
    assert any(str(row(29)[1]) in line for line in lines)
    assert lines[0] == lines[-1] == "Origin: the answer"
    short = Screen(everything=True)
    short.say(["Origin: the answer"])
    assert terminal(short, 80, 24) == ["Origin: the answer"]


def test_a_file_gets_whole_names_and_at_most_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    made().show()
    lines = capsys.readouterr().out.splitlines()
    assert "Rows that differ: 8 of 30; --all prints all" in lines
    assert any(str(row(7)[1]) in line and "train.py:7 in forward" in line for line in lines)
    assert sum(line.startswith("error") for line in lines) == 8
    made(reserved=8).show()
    fewer = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("error") for line in fewer) == 5
    assert len(fewer) == 24 - 8


def test_a_log_loses_no_line_of_a_long_answer_and_ends_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    screen = made()
    screen.say([f"  note {place}" for place in range(6, 30)], drop=1)
    screen.show()
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("error") for line in lines) == 3
    assert [line for line in lines if line.startswith("  note")] == [f"  note {place}" for place in range(30)]
    assert lines[0] == lines[-1] == "Origin: the answer"


def test_a_listing_has_every_row_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    made(listing=True).show()
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("error") for line in lines) == 30
    assert lines[-1] == "the end"


def test_a_listing_is_one_screen_on_a_terminal(terminal) -> None:
    assert len(terminal(made(listing=True), 80, 24)) <= 24 - 2


def test_numbers_are_aligned_to_the_right_and_rows_have_the_colour_of_their_mark(
    terminal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Screen()
    screen.table([Column("n"), Column("verdict", MARK)], [[1, "error"], [12, "pass"], [3, "x"]], "T")
    terminal(screen, 80, 24)
    monkeypatch.delenv("NO_COLOR")
    screen.show()
    assert capsys.readouterr().out.splitlines() == [
        "",
        "T",
        "\x1b[1m n  verdict\x1b[0m",
        "\x1b[31m 1  error\x1b[0m",
        "\x1b[32m12  pass\x1b[0m",
        " 3  x",
    ]


def test_control_characters_in_a_table_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    screen.table([Column("name", NAME)], [["a\x1b[2J"]])
    screen.show()
    assert "a\\x1b[2J" in capsys.readouterr().out
