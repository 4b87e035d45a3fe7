"""An older run is moved away; the ranks of one run, which start together, never move each other."""

from __future__ import annotations

import os
import subprocess
import sys
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
moved = archive_older_run(path, number)
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


def test_a_slow_rank_joins_a_sister_that_has_already_ended(tmp_path: Path) -> None:
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
    moved = archive_older_run(path)
    assert moved is not None
    assert set(contents(path)) == {"my_notes", "graphs"}
    assert set(contents(moved)) == {"step0/proc123", "graph/step0/rank0", "pynative/step2/rank0"}
    assert not (path / "graph").exists()


def test_a_process_archives_once(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    assert archive_older_run(path) is None
    layout.make_directory(layout.rank_directory(path, 0, None))
    assert archive_older_run(path) is None
    assert (path / "step0/rank").is_dir()


def test_where_nothing_can_be_made_beside_it_the_older_run_stays_inside(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs to mount a file system")
    path = tmp_path / "dump"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)], check=False).returncode:
        pytest.skip("cannot mount here")
    try:
        (path / "step0/rank").mkdir(parents=True)
        moved = archive_older_run(path)
        assert moved is not None
        assert moved.parent == path
        assert (moved / "step0/rank").is_dir()
        assert not (path / "step0").exists()
        assert older(path) == []
    finally:
        subprocess.run(["umount", str(path)], check=True)
