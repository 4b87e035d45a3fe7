"""An older run is moved away; the ranks of one run, which start together, never move each other."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from msprobe.dump import layout
from msprobe.dump.archive import archive_older_run

RANK = """
import os, sys, time
from pathlib import Path
from msprobe.dump import layout
from msprobe.dump.archive import archive_older_run

path, rank, mark, delay, hold = Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]), float(sys.argv[5])
time.sleep(delay)
number = None if rank == "-" else int(rank)
path, moved = archive_older_run(path, number)
for step in (0, 1):
    directory = layout.rank_directory(path, step, number)
    layout.make_directory(directory)
    (directory / "dump.json").write_text(mark)
print("moved" if moved else "stayed", flush=True)
time.sleep(hold)
"""


def start(path: Path, rank: str, mark: str, delay: float = 0, hold: float = 0, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RANK, str(path), rank, mark, str(delay), str(hold)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **env})


def wait(processes: list[subprocess.Popen[str]]) -> list[str]:
    said = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    return said


def contents(path: Path) -> dict[str, str]:
    return {str(file.parent.relative_to(path)): file.read_text() for file in sorted(path.glob("**/dump.json"))}


def older(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.old-*"))


def whole_run(mark: str, ranks: int = 4) -> dict[str, str]:
    return {f"step{step}/rank{rank}": mark for step in (0, 1) for rank in range(ranks)}


def test_four_ranks_that_start_together_keep_each_others_directories(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    for mark in ("first", "second", "third"):
        said = wait([start(path, str(rank), mark) for rank in range(4)])
        assert sorted(said) == (["stayed"] * 4 if mark == "first" else ["moved"] + ["stayed"] * 3)
        assert contents(path) == whole_run(mark)
    assert sorted(contents(old)["step1/rank3"] for old in older(path)) == ["first", "second"]
    assert all(contents(old) in (whole_run("first"), whole_run("second")) for old in older(path))


def test_a_slow_rank_joins_a_run_whose_other_rank_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    wait([start(path, "0", "new"), start(path, "1", "new", delay=1.0)])
    assert contents(path) == whole_run("new", 2)
    assert older(path) == []


def test_a_run_with_fewer_ranks_or_none_leaves_nothing_of_the_older_one(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    wait([start(path, str(rank), "old", WORLD_SIZE="4") for rank in range(4)])
    wait([start(path, str(rank), "mid", WORLD_SIZE="2") for rank in (1, 0)])
    assert contents(path) == whole_run("mid", 2)
    wait([start(path, "-", "new")])
    assert contents(path) == {"step0/rank": "new", "step1/rank": "new"}
    assert len(older(path)) == 2


def test_a_run_that_died_half_started_is_not_joined_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    wait([start(path, "0", "died")])
    first = start(path, "1", "new", hold=3.0, WORLD_SIZE="2")
    assert first.stdout is not None
    assert first.stdout.readline().strip() == "moved"
    wait([start(path, "0", "new", WORLD_SIZE="2")])
    assert contents(path) == whole_run("new", 2)
    first.wait(60)


def test_even_when_the_launcher_looks_the_same_a_living_rank_is_never_moved(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    wait([start(path, "0", "died")])
    living = start(path, "1", "new", hold=4.0)  # joins: one launcher (this process), and its place is free
    assert living.stdout is not None
    living.stdout.readline()
    assert wait([start(path, "0", "new")]) == ["moved"]
    assert contents(path) == whole_run("new", 2)
    assert [contents(old) for old in older(path)] == [{"step0/rank0": "died", "step1/rank0": "died"}]
    living.wait(60)


def test_a_dump_of_another_tool_and_both_modes_of_mindspore_are_moved_and_other_files_stay(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    for name in ("step0/proc123", "graph/step0/rank0", "pynative/step2/rank0", "my_notes", "graphs"):
        (path / name).mkdir(parents=True)
        (path / name / "dump.json").write_text("old")
    moved = archive_older_run(path).moved
    assert moved is not None
    assert set(contents(path)) == {"my_notes", "graphs"}
    assert set(contents(moved)) == {"step0/proc123", "graph/step0/rank0", "pynative/step2/rank0"}
    assert not (path / "graph").exists()


def test_a_process_archives_once(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    assert archive_older_run(path) == (path, None)
    layout.make_directory(layout.rank_directory(path, 0, None))
    assert archive_older_run(path) == (path, None)
    assert (path / "step0/rank").is_dir()


def test_the_older_run_moves_inside_if_nothing_can_be_created_next_to_dump_path(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs to mount a file system")
    path = tmp_path / "dump"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)], check=False).returncode:
        pytest.skip("cannot mount here")
    try:
        (path / "step0/rank").mkdir(parents=True)
        moved = archive_older_run(path).moved
        assert moved is not None
        assert moved.parent == path
        assert (moved / "step0/rank").is_dir()
        assert not (path / "step0").exists()
        assert older(path) == []
    finally:
        subprocess.run(["umount", str(path)], check=True)


def begun(path: Path, rank: str, mark: str, hold: float, **env: str) -> subprocess.Popen[str]:
    """A process that has written its files and lives on."""
    process = start(path, rank, mark, hold=hold, **env)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_run_next_to_a_living_run_has_its_own_directory_with_all_its_ranks(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    (path / "run-2").mkdir(parents=True)
    (path / "run-2/notes").write_text("the user's")
    first = begun(path, "-", "first", 30.0)
    assert wait([start(path, "-", "second")]) == ["stayed"]  # the same variables, the same place
    third = begun(path, "0", "third", 30.0, WORLD_SIZE="2")
    for one in (first, third):
        assert one.poll() is None
    first.kill()
    first.communicate()
    wait([start(path, "1", "third", WORLD_SIZE="2")])  # joins its sister, though dump_path is free now
    third.kill()
    third.communicate()
    whole = {"step0/rank": "first", "step1/rank": "first"}
    assert contents(path / "run-3") == whole_run("third", 2)
    assert {name: mark for name, mark in contents(path).items() if name.startswith("step")} == whole
    assert [contents(old) for old in path.glob("run-3.old-*")] == [{"step0/rank": "second", "step1/rank": "second"}]
    assert [file.name for file in (path / "run-2").iterdir()] == ["notes"]
    assert older(path) == []


def test_a_process_that_ended_without_a_wait_is_not_a_living_run(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    ended = begun(path, "-", "old", 0.0)
    assert ended.stdout is not None
    ended.stdout.read()
    while Path(f"/proc/{ended.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    assert wait([start(path, "-", "new")]) == ["moved"]
    assert contents(path) == {"step0/rank": "new", "step1/rank": "new"}
    ended.wait()


def test_a_member_on_another_host_is_joined_by_its_own_job_only(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    wait([start(path, str(rank), "old", WORLD_SIZE="2") for rank in (0, 1)])
    register = path / layout.REGISTER
    register.write_text(register.read_text().replace(json.dumps(socket.gethostname()), '"elsewhere"'))
    wait([start(path, "0", "new", WORLD_SIZE="1", MASTER_PORT="2")])
    assert contents(path / "run-2") == whole_run("new", 1)
    assert {name: mark for name, mark in contents(path).items() if name.startswith("step")} == whole_run("old", 2)
    first = begun(path, "0", "again", 30.0, WORLD_SIZE="2")  # its own job, started again elsewhere
    wait([start(path, "1", "again", WORLD_SIZE="2")])
    first.kill()
    first.communicate()
    assert {name: mark for name, mark in contents(path).items() if name.startswith("step")} == whole_run("again", 2)


def test_directories_of_the_users_stay_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "out"
    theirs = ("step1000/model.bin", "graph/step3/rank0/plot.png", "step0/notes.txt", "step2/rank_file")
    for name in (*theirs, "step0/rank0/dump.json", "step1/rank/journal.jsonl"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(name)
    (path / "pynative").mkdir()
    moved = archive_older_run(path).moved
    assert moved is not None
    assert all((path / name).read_text() == name for name in theirs)
    assert (path / "pynative").is_dir()
    assert sorted(str(file.relative_to(moved)) for file in moved.glob("**/*.json*")) == [
        "step0/rank0/dump.json",
        "step1/rank/journal.jsonl",
    ]
    assert not (path / "step1").exists()


@pytest.mark.parametrize(
    "text",
    [
        '{"rank0": {"host": HOST, "process": [null, 1]}}',
        '{"rank0": {"host": HOST, "process": [1e400, 1], "launcher": [], "job": "", "since": 1.0}}',
        '{"rank0": {"host": "x", "process": [1, 1], "launcher": [], "job": "", "since": 1e999}}',
        '{"rank0": {"host": "x", "process": [], "launcher": [], "job": [], "since": NOW}}',
        '{"../../x": {"host": "x", "process": [], "launcher": [], "job": "", "since": NOW}}',
        "[" * 100_000,
        "\xff",
        "",
    ],
)
def test_a_damaged_register_counts_as_none(tmp_path: Path, text: str) -> None:
    host, now = json.dumps(socket.gethostname()), json.dumps(time.time())
    (tmp_path / "step0/rank").mkdir(parents=True)
    (tmp_path / layout.REGISTER).write_bytes(text.replace("HOST", host).replace("NOW", now).encode("latin1"))
    root, moved = archive_older_run(tmp_path)
    assert root == tmp_path
    assert moved is not None
    assert set(json.loads((tmp_path / layout.REGISTER).read_text())) == {"rank"}


def test_a_pipe_in_the_place_of_the_register_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / layout.REGISTER)
    assert archive_older_run(tmp_path) == (tmp_path, None)
    assert (tmp_path / layout.REGISTER).is_file()


def test_the_debugger_writes_next_to_a_living_run_and_logs_where(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    first = begun(path, "-", "first", 60.0)
    code = (
        "import sys, torch\nfrom msprobe.pytorch import PrecisionDebugger\n"
        "debugger = PrecisionDebugger(dump_path=sys.argv[1], task='statistics', level='L1')\n"
        "debugger.start(); torch.ones(2) + 1; debugger.stop(); debugger.step()\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    first.kill()
    first.communicate()
    assert f"another run may still write to {path}; this run writes to {path / 'run-2'}." in done.stderr
    assert (path / "run-2/step0/rank/dump.json").is_file()
    assert (path / "step0/rank/dump.json").read_text() == "first"
