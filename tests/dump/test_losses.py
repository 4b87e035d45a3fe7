"""The dump itself says what a write error lost, only at the place where it happened."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from msprobe.cli import main
from msprobe.dump import write_errors
from msprobe.dump.reader import open_dump

FULL_FOR_A_WHILE = """
import resource, signal, sys
from pathlib import Path
from msprobe.dump import layout
from msprobe.dump.writing.writer import Head, RankWriter, Worker

TENSOR = (
    '{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1], "Max": 1.0, "Min": 1.0, "Mean": 1.0, "Norm": 1.0}'
)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
worker = Worker(log=lambda text: None)

def files_up_to(size):
    worker.run(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY)))

def writer(step):
    return RankWriter(layout.rank_directory(Path(sys.argv[1]), step, None), Head("statistics", "L1", "pytorch"), worker)

def say(to, first, last):
    for number in range(first, last):
        to.record(f"Torch.add.{number}.forward", None, None, '"output": [' + TENSOR + "]")
    to.flush()

whole = writer(0)
say(whole, 0, 20)
whole.finish()
files_up_to(0)
none = writer(1)
say(none, 0, 20)
none.finish()
files_up_to(resource.RLIM_INFINITY)
half = writer(2)
say(half, 0, 5)
files_up_to(1100)
say(half, 5, 20)
files_up_to(resource.RLIM_INFINITY)
print(half.finish().errors)
half.finish()
cut = writer(3)
say(cut, 0, 5)
files_up_to(0)
say(cut, 5, 20)
cut.finish()
files_up_to(resource.RLIM_INFINITY)
last = writer(4)
say(last, 0, 20)
last.finish()
"""


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five steps: whole, not even a journal, cut short and finished, cut short and full to the end, whole."""
    path = tmp_path_factory.mktemp("losses") / "dump"
    command = [sys.executable, "-c", FULL_FOR_A_WHILE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "16\n"
    assert done.stderr == ""
    return path


def test_every_step_that_could_be_written_is_read_and_the_others_are_named(dump: Path) -> None:
    found = open_dump(dump)
    assert {rank.label: (len(rank.records), rank.unfinished) for rank in found.ranks} == {
        "step0/rank": (20, False),
        "step2/rank": (5, False),
        "step3/rank": (5, True),
        "step4/rank": (20, False),
    }
    assert [rank.troubles for rank in found.ranks] == [
        [],
        ["16 records or files could not be written"],
        ["records or files could not be written (dump_error_info.log is empty)"],
        [],
    ]
    assert found.notes == [
        f"{dump}/step1/rank holds neither dump.json nor a journal: records or files could not be written "
        "(dump_error_info.log is empty)"
    ]


def test_the_log_has_one_entry_however_often_a_step_is_finished(dump: Path) -> None:
    log = (dump / "step2/rank/dump_error_info.log").read_text()
    assert log.count("could not be written") == 1


def test_show_reports_it_for_each_rank(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(dump)]) == 0
    shown = capsys.readouterr().out
    states = {line.split()[0]: line.split()[-1] for line in shown.splitlines() if line.startswith("step")}
    assert states["step0/rank"] == states["step4/rank"] == "finished"
    assert "step2/rank        5            5  incomplete" in shown
    assert "step2/rank: 16 records or files could not be written.\n" in shown
    assert f"{dump}/step1/rank holds neither dump.json nor a journal: " in shown
    assert main(["show", str(dump), "--json"]) == 0
    logged = json.loads(capsys.readouterr().out)
    assert [rank["state"] for rank in logged["ranks"]] == ["finished", "incomplete", "unfinished", "finished"]
    assert len(logged["notes"]) == 1


def test_overflow_and_compare_go_on_with_the_rest_and_name_it(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = shutil.copytree(dump, dump.with_name("copy"))
    for arguments, code in ((["compare", str(dump), str(copy)], 2), (["overflow", str(dump)], 0)):
        assert main(arguments) == code  # 2: something was not compared
        assert "step1/rank holds neither dump.json nor a journal" in capsys.readouterr().out


def test_an_error_of_msprobe_in_the_log_is_reported_as_one(tmp_path: Path) -> None:
    assert write_errors.trouble(tmp_path) is None
    (tmp_path / "dump_error_info.log").write_text("2026-01-01 00:00:00 Torch.add.0.forward\nTraceback …\n")
    assert (
        write_errors.trouble(tmp_path)
        == "dump_error_info.log has entries: msprobe had errors while it wrote this directory"
    )
