"""Two real processes under msrun."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

needs_msrun = pytest.mark.skipif(not Path(sys.executable).with_name("msrun").exists(), reason="msrun is not installed")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_two(path: Path, source: str, *words: str) -> None:
    """Starts two workers with msrun, which print "done "; ends what still runs after the time limit."""
    script = path / "train.py"
    script.write_text(source)
    msrun = Path(sys.executable).with_name("msrun")
    command = [str(msrun), "--worker_num=2", "--local_worker_num=2", f"--master_port={free_port()}"]
    command += ["--master_addr=127.0.0.1", f"--log_dir={path / 'log'}", "--join=True", str(script), *words]
    environment = {**os.environ, "PATH": f"{msrun.parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    with (path / "out").open("w") as out:
        process = subprocess.Popen(
            command, cwd=path, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout=150)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    logs = "\n".join(p.read_text(errors="replace")[-1500:] for p in (path / "log").glob("worker_*.log"))
    assert code == 0, (path / "out").read_text()[-1500:] + logs
    assert logs.count("done ") == 2, logs
