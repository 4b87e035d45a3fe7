"""`msprobe recover` finishes what a crash left, and says what it could not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from msprobe.cli import main
from msprobe.dump import journal
from msprobe.dump.reader import open_dump

HEAD = journal.head_line(journal.Head("statistics", "mix", "pytorch"))


def crashed(path: Path, *lines: str) -> Path:
    path.mkdir(parents=True)
    (path / "journal.jsonl").write_text("".join(lines))
    return path


def test_every_journal_is_finished_and_a_second_time_there_is_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        crashed(
            tmp_path / f"step0/rank{rank}",
            HEAD,
            journal.record_line("a", None, None, ""),
            journal.begin_line(0, "m", None, None, '"input_args": []'),
            "garbage\n",
            '["end", 0, {"out',
        )
    (tmp_path / "step0/rank0/.dump.json.1.tmp").write_text("half")
    assert main(["recover", str(tmp_path)]) == 0
    line = (
        "2 records, 1 of them cut off inside the call; 1 damaged line of journal.jsonl was left out; "
        "the last line was cut short by the crash and left out"
    )
    assert capsys.readouterr().out == f"step0/rank0: {line}\nstep0/rank1: {line}\n"
    assert [rank.unfinished for rank in open_dump(tmp_path).ranks] == [False, False]
    assert sorted(file.name for file in (tmp_path / "step0/rank0").iterdir()) == [
        "construct.json",
        "dump.json",
        "journal.jsonl",
        "stack.json",
    ]
    assert main(["recover", str(tmp_path)]) == 0
    assert "nothing to recover" in capsys.readouterr().out


def test_some_that_cannot_be_recovered_are_exit_code_1_and_all_are_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (crashed(tmp_path / "step0/rank0", HEAD) / "journal.jsonl").open("a") as journal_file:
        journal_file.write('nonsense\n["begin", 1, "cut')
    crashed(tmp_path / "step0/rank1", "")
    assert main(["show", str(tmp_path), "--json"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    damaged = {"id": "dump.damaged_lines", "arguments": {"number": 1, "file": "journal.jsonl"}}
    assert rank["messages"] == {"notes": [damaged]}
    assert main(["recover", str(tmp_path), "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    cut = {"id": "dump.cut_line", "arguments": {}}
    assert shown["recovered"][0]["messages"] == {"notes": [damaged, cut]}
    assert [row["rank"] for row in shown["recovered"]] == ["step0/rank0"]
    assert "lost its first line" in shown["failed"][0]["error"]
    assert main(["recover", str(tmp_path / "step0/rank1")]) == 2
    assert "lost its first line" in capsys.readouterr().err


def test_damaged_json_files_are_made_again_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank = crashed(tmp_path / "step0/rank", HEAD, journal.record_line("a", None, None, ""))
    (rank / "dump.json").write_text('{"data": {"a"')
    assert main(["show", str(tmp_path)]) == 2
    assert f"Run `msprobe recover --all {rank}`" in capsys.readouterr().err
    assert main(["recover", "--all", str(tmp_path)]) == 0
    assert main(["show", str(tmp_path)]) == 0


def test_a_dump_that_is_being_written_can_be_shown_and_is_not_recovered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from msprobe.dump.writing.writer import Head, RankWriter, Worker\n"
        "w = RankWriter(Path(sys.argv[1]), Head('statistics', 'mix', 'pytorch'), Worker())\n"
        "w.record('Torch.add.0.forward', None, None, ''); w.flush(); print('on', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "step0/rank")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    assert main(["show", str(tmp_path)]) == 0
    assert "unfinished" in capsys.readouterr().out
    assert main(["recover", str(tmp_path)]) == 2
    assert "still being written by a running process" in capsys.readouterr().err
    process.communicate("", timeout=30)
    assert process.returncode == 0
    assert not open_dump(tmp_path).ranks[0].unfinished


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("dump.json", "", "is not JSON"),
        ("dump.json", "[]", "is not a JSON object"),
        ("dump.json", '{"task": "statistics"}', 'it has no "data" object'),
        ("debug.json", "{}", 'it has no "data" object'),
    ],
)
def test_a_file_that_is_not_a_dump_and_has_no_journal_is_not_called_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, said: str
) -> None:
    (tmp_path / "step0/rank").mkdir(parents=True)
    (tmp_path / "step0/rank" / name).write_text(text)
    assert main(["recover", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


EXTRA = {
    "record": '["record", "a.0.forward", null, null, {}, {"x": 1}]\n',
    "end": '["begin", 1, "a.0.forward", null, null, {}]\n["end", 1, {}, {}]\n',
    "begin": '["begin", 1, "a.0.forward", null, null, {}, {}]\n',
    "debug": '["debug", "x", {"a": 1}, 3]\n["debug", "y", ]\n',
    "stack": '["stack", 0, [1], [2]]\n',
    "head": '["head", {"task": "x"}, 1]\n',
}


@pytest.mark.parametrize("kind", EXTRA)
@pytest.mark.parametrize("level", ["mix", "debug"])
def test_a_line_with_a_member_too_many_is_damaged_and_what_is_made_is_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, level: str
) -> None:
    head = journal.head_line(journal.Head("statistics", level, "pytorch"))
    record = journal.record_line("b.0.forward", None, 0, "")
    rank = crashed(tmp_path / "step0/rank", head, EXTRA[kind], record, journal.debug_line("z", "1"))
    assert main(["show", str(tmp_path)]) == 0
    assert main(["recover", str(tmp_path)]) == 0
    assert "of journal.jsonl w" in capsys.readouterr().out
    for file in rank.glob("*.json"):
        json.loads(file.read_bytes())
    assert main(["show", str(tmp_path)]) == 0


def test_names_are_printed_without_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(("\\u001b[2Jx.0.forward", "\\ud800.0.forward")):
        line = f'["record", "{name}", null, null, {{}}]\n'
        crashed(tmp_path / f"step0/rank{number}", HEAD, line, line)
    assert main(["recover", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "first \\x1b[2Jx.0.forward" in shown
    assert "first \\ud800.0.forward" in shown
