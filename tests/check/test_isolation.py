"""run_ut on an untrusted dump: no hook is imported, and no file next to the dump is run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HOOKS = ("msprobe.pytorch", "msprobe.mindspore", "msprobe.collect", "msprobe.tasks")
PARENT = """
import json, sys
from msprobe.cli import main
code = main(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    json.dump(sorted(sys.modules), file)
sys.exit(code)
"""
# In a worker: what is imported so far, and from then on each import as it happens.
WITNESS = """
import sys
file = open({path!r}, "a", buffering=1)
print(*sys.modules, sep="\\n", file=file)
sys.addaudithook(lambda event, args: event == "import" and print(args[0], file=file))
"""
# Modules of Python, of libraries and of frameworks that a worker imports.
PLANTED = ("resource", "signal", "json", "multiprocessing", "torch", "numpy", "sitecustomize")


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    item: dict[str, Any] = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], "Max": 1.0, "Min": -1.0}
    record = {"input_args": [item], "input_kwargs": {}, "output": [item]}
    rank = tmp_path / "dump" / "step0" / "rank"
    rank.mkdir(parents=True)
    head = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    data = {"Torch.sin.0.forward": record, "Torch.sin.0.backward": {"input": [item], "output": [item]}}
    (rank / "dump.json").write_text(json.dumps({**head, "data": data}))
    return tmp_path / "dump"


def test_run_ut_on_a_pytorch_dump_imports_no_hook(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "witness.py").write_text(WITNESS.format(path=str(tmp_path / "worker.txt")))
    command = ["run_ut", "-api_info", str(dump), "-o", str(tmp_path / "out"), "--jobs", "1", "--import", "witness"]
    parent = tmp_path / "parent.json"
    subprocess.run([sys.executable, "-c", PARENT, str(parent), *command], cwd=tmp_path, check=True, timeout=300)
    for modules in (json.loads(parent.read_text()), (tmp_path / "worker.txt").read_text().splitlines()):
        assert any(name.startswith("msprobe.check") for name in modules)
        assert [name for name in modules if name.startswith(HOOKS)] == []
    assert "msprobe.check.pytorch.framework" in (tmp_path / "worker.txt").read_text().splitlines()


@pytest.mark.parametrize("how", ["command", "module"])
def test_a_module_planted_in_a_dump_does_not_run(dump: Path, tmp_path: Path, how: str) -> None:
    trace = tmp_path / "ran"
    for name in PLANTED:
        (dump / f"{name}.py").write_text(f"open({str(trace)!r}, 'a').write({name!r})\n")
    start = [str(Path(sys.executable).with_name("msprobe"))] if how == "command" else [sys.executable, "-m", "msprobe"]
    command = [*start, "run_ut", "-api_info", ".", "-o", str(tmp_path / "out"), "--jobs", "1"]
    ended = subprocess.run(command, cwd=dump, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert not trace.exists(), f"{trace.read_text()} ran"
