"""Python processes of msprobe never import a module from the current directory."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

import msprobe
from msprobe.collect.run.online import OnlineSender
from msprobe.config import TensorSettings, load
from msprobe.system.processes import python_command, python_environment

PLANTED = ("resource", "json", "hmac", "numpy")


@pytest.mark.parametrize("code", ["import resource, json, hmac, numpy", "import msprobe.check.online.sender"])
def test_a_module_in_the_current_directory_does_not_run(tmp_path: Path, code: str) -> None:
    """The second line is what the sender of the online check runs before it sends anything."""
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text(f"open('ran', 'a').write({name!r})\n")
    ended = subprocess.run(
        python_command(code), cwd=tmp_path, env=python_environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "ran").exists()


def test_the_sender_of_the_online_check_is_started_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hmac.py").write_text("open('ran', 'a').write('hmac')\n")
    shared = tmp_path / "shared"
    shared.mkdir()
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "tensor", "tensor": {"online_run_ut": True, "nfs_path": str(shared)}}))
    section = load("pytorch", config, dump_path=tmp_path / "dump").section
    assert isinstance(section, TensorSettings)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # as in a script that runs from this directory
    sender = OnlineSender(section, None)
    sender.end()
    assert sender._process is not None
    assert sender._process.wait(timeout=120) == 0
    assert not (tmp_path / "ran").exists()


def test_every_process_of_ours_is_started_so() -> None:
    """Elsewhere only scripts of the user are started, as Python starts them."""
    source = Path(str(msprobe.__file__)).parent
    starts = re.compile(r"\[sys\.executable, ")
    found = {file.relative_to(source).as_posix() for file in source.rglob("*.py") if starts.search(file.read_text())}
    assert found == {"system/processes.py", "cli/graph_dump.py", "collect/run/header.py", "rerun/launch.py"}
