"""The framework's files while they wait: what a look finds, and what is left of a long run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from msprobe.graphdump.dumping.staging import StagingDirectory

NAME = "Add.Default_Add-op0.0.0.{}.output.0.DefaultFormat.Int32.npy"


def written(root: Path, iteration: int, moment: int) -> Path:
    place = root / "rank_0" / "N" / "1" / str(iteration)
    place.mkdir(parents=True, exist_ok=True)
    path = place / NAME.format(moment)
    np.save(path, np.arange(3, dtype=np.int32))
    return path


def test_only_finished_files_are_found_once_and_all_bytes_count(tmp_path: Path):
    staging = StagingDirectory(tmp_path)
    done, growing = written(tmp_path, 0, 2), written(tmp_path, 0, 1)
    done.chmod(0o400)
    growing.chmod(0o600)
    (found,) = staging.new_files()
    assert (found.path, found.graph, found.iteration) == (done, 1, 0)
    assert staging.bytes_used() == done.stat().st_size + growing.stat().st_size
    growing.chmod(0o400)
    (later,) = staging.new_files()
    assert later.path == growing
    for one in (found, later):
        staging.discard(one)
    assert staging.bytes_used() == 0
    assert not staging.new_files()


def test_empty_directories_of_older_iterations_go_and_are_found_again_when_they_come_back(tmp_path: Path):
    staging = StagingDirectory(tmp_path)
    for iteration in range(6):
        written(tmp_path, iteration, iteration).chmod(0o400)
    kept, *others = staging.new_files()
    for one in others:
        staging.discard(one)
    graph = tmp_path / "rank_0" / "N" / "1"
    staging.prune(time.time())
    assert len(list(graph.iterdir())) == 6  # written to a moment ago
    for place in graph.iterdir():
        os.utime(place, (0, 0))
    staging.prune(time.time())
    assert sorted(path.name for path in graph.iterdir()) == ["0", "4", "5"]  # 0 holds a file
    written(tmp_path, 2, 9).chmod(0o400)
    (again,) = staging.new_files()
    assert (again.iteration, kept.iteration) == (2, 0)
