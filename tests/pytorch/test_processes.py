"""What only shows in a process of its own: forks, kills, full disks, runs that end by themselves."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from collecting import Dump, configured

SCRIPT = Path(__file__).with_name("train_for_processes.py")


def run(kind, *config):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), kind, *config], capture_output=True, text=True, timeout=120, env=environment
    )


@functools.cache
def bare(kind):
    finished = run(kind)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_after_kill_9_everything_older_than_the_last_flush_is_recovered(tmp_path):
    killed = run("killed", configured(tmp_path, level="mix"))
    assert killed.returncode == -9
    first, second = Dump(tmp_path / "dump", 0), Dump(tmp_path / "dump", 1)
    assert "Functional.mse_loss.0.backward" in first.names
    assert not (second.directory / "dump.json").exists()
    code = "import sys; from msprobe.cli import main; sys.exit(main(sys.argv[1:]))"
    recovered = subprocess.run(
        [sys.executable, "-c", code, "recover", str(tmp_path / "dump")], capture_output=True, text=True, timeout=120
    )
    assert recovered.returncode == 0, recovered.stderr
    names = second.names
    assert [name for name in names if name in first.names] == first.names
    assert all(f"Torch.relu.{number}.forward" in names for number in range(400))
    assert second["Torch.relu.399.forward"]["output"][0]["Max"] == 1
    assert second.construct["Functional.linear.0.forward"] == "Module.0.Linear.forward.0"


def test_forked_workers_and_children_record_nothing_and_block_nothing(tmp_path):
    finished = run("workers", configured(tmp_path, level="mix"))
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == bare("workers")
    dump = Dump(tmp_path / "dump")
    assert not dump.errors
    assert "Functional.mse_loss.2.backward" in dump.names
    assert not any(name.startswith(("Torch.tanh", "Torch.relu")) for name in dump.names)
    assert [path.name for path in (tmp_path / "dump").glob("step*")] == ["step0"]


@pytest.mark.parametrize("level", ["L1"])
def test_enable_dataloader_ends_the_run_after_the_last_wanted_step(tmp_path, level):
    finished = run("loader", configured(tmp_path, level=level, step=[1, 2], enable_dataloader=True))
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "".join(bare("loader").splitlines(keepends=True)[:3])
    assert "deprecated" in finished.stderr
    assert sorted(path.name for path in (tmp_path / "dump").glob("step*")) == ["step1", "step2"]
    assert Dump(tmp_path / "dump", 2).names == Dump(tmp_path / "dump", 1).names


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_full_disk_is_logged_once_and_training_continues(tmp_path, task):
    finished = run("limited", configured(tmp_path, level="mix", task=task))
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == bare("limited")
    assert finished.stderr.count("File too large") == 1, finished.stderr


def test_a_dump_path_that_cannot_be_written_is_an_error_when_the_debugger_is_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    config = configured(tmp_path, level="mix")
    text = Path(config).read_text().replace(f"{tmp_path}/dump", f"{tmp_path}/file/dump")
    Path(config).write_text(text)
    finished = run("plain", config)
    assert finished.returncode == 1
    assert finished.stdout == ""
    assert f"{tmp_path}/file is a file; give a directory that can be written" in finished.stderr


def test_a_directory_that_cannot_be_created_later_is_logged_once_and_training_continues(tmp_path):
    config = configured(tmp_path, level="mix")
    finished = run("blocked", config, str(tmp_path / "dump"))
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == bare("plain")
    assert finished.stderr.count("cannot write") == 1, finished.stderr
    assert "Traceback" not in finished.stderr


def test_the_first_torch_compile_of_a_script_may_come_while_collecting(tmp_path):
    config = configured(tmp_path, level="L1")
    code = (
        "import sys, torch; from msprobe.pytorch import PrecisionDebugger;"
        "debugger = PrecisionDebugger(sys.argv[1]); debugger.start();"
        "f = torch.compile(lambda x: torch.sin(x) * 2, backend='eager', fullgraph=True); f(torch.ones(1));"
        "debugger.stop(); debugger.step()"
    )
    finished = subprocess.run([sys.executable, "-c", code, config], capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert Dump(tmp_path / "dump").names == ["Compiled.<lambda>.0.forward"]


def test_a_run_without_stop_gets_its_files_at_exit(tmp_path):
    config = configured(tmp_path, level="L1")
    code = (
        "import sys, torch; from msprobe.pytorch import PrecisionDebugger;"
        "PrecisionDebugger(sys.argv[1]).start(); torch.relu(torch.ones(1))"
    )
    subprocess.run([sys.executable, "-c", code, config], check=True, capture_output=True, timeout=120)
    assert Dump(tmp_path / "dump").names == ["Torch.relu.0.forward"]
