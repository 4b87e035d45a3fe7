"""A MindSpore training run that sends, and a checker that is killed and started again in the middle."""

from __future__ import annotations

import csv
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def _configured(path: Path, task: str, **section: Any) -> str:
    file = path / f"{task}.json"
    file.write_text(json.dumps({"task": task, "level": "L1", "dump_path": str(path / "dump"), task: section}))
    return str(file)


def _results(out: Path) -> tuple[Counter[tuple[str, str]], set[tuple[str, ...]]]:
    found: Counter[tuple[str, str]] = Counter()
    errors = set()
    for file in out.glob("*/step*/rank*/accuracy_checking_result_online.csv"):
        step = file.parent.parent.name
        for row in list(csv.reader(file.open()))[1:]:
            found[step, row[0]] += 1
            if "error" in row:
                errors.add((step, *row[:3]))
    return found, errors


def _address(path: Path) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    secret = path / "secret"
    secret.touch(0o600)
    secret.write_text(secrets.token_hex(32))
    return {"host": "127.0.0.1", "port": port, "secret_file": str(secret)}


def _calls(dump: Path) -> int:
    """API calls in all steps of a dump."""
    records = [json.loads(file.read_text())["data"] for file in dump.glob("step*/rank/dump.json")]
    return sum(1 for step in records for name in step if name.endswith(".forward"))


def test_a_run_is_judged_while_it_goes_on_and_a_killed_checker_loses_nothing(tmp_path: Path) -> None:
    address, out = _address(tmp_path), tmp_path / "out"
    checking = [sys.executable, "-m", "msprobe", "-f", "mindspore", "run_ut", "--online", "--jobs", "1", "-o", str(out)]
    checking += ["-config", _configured(tmp_path, "run_ut", is_online=True, **address)]
    training = [sys.executable, str(HERE / "ms_train.py"), "mlp"]
    training += [_configured(tmp_path, "tensor", online_run_ut=True, **address)]
    started: list[subprocess.Popen[str]] = []

    def start(command: list[str]) -> subprocess.Popen[str]:
        environment = {**os.environ, "STEPS": "4"}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment))
        return started[-1]

    try:
        first, run = start(checking), start(training)
        deadline = time.monotonic() + 120
        while sum(_results(out)[0].values()) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        first.kill()
        first.wait()
        before, _ = _results(out)
        assert before
        second = start(checking)
        logged, _ = second.communicate(timeout=120)
        assert second.returncode == 0, logged
        assert run.wait(timeout=60) == 0, run.communicate()
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()
    found, errors = _results(out)
    assert set(found.values()) == {1}
    assert before.keys() <= found.keys()
    assert len(found) == _calls(tmp_path / "dump") > 40
    assert {step for step, _ in found} == {f"step{n}" for n in range(4)}
    assert not errors
