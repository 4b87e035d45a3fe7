"""The training is paused while MindSpore's files take more than a quarter of the disk budget."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from msprobe.graphdump.dumping.dump_settings import parse_settings
from msprobe.graphdump.dumping.messages import Messages
from msprobe.graphdump.dumping.worker import Job, Worker

NAME = "Add.Default_Add-op0.0.0.{}.output.0.DefaultFormat.Float32.npy"


@pytest.mark.parametrize(("megabytes", "pauses"), [(5, 1), (1, 0)])
def test_files_above_a_quarter_of_the_budget_stop_the_process_until_they_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, megabytes: int, pauses: int
):
    sent, kill = [], os.kill
    monkeypatch.setattr(os, "kill", lambda pid, number: (sent.append((pid, number)), kill(pid, number)))
    staging = tmp_path / "staging"
    place = staging / "rank_0" / "N" / "1" / "0"
    place.mkdir(parents=True)
    for moment in range(4):
        path = place / NAME.format(moment)
        np.save(path, np.ones(megabytes << 18, dtype=np.float32))
        path.chmod(0o400)
    common = {"path": str(tmp_path / "out"), "net_name": "N", "dump_mode": 0, "iteration": "all", "input_output": 0}
    common |= {"kernels": [], "op_debug_mode": 0, "saved_data": "statistic"}
    value = {"common_dump_settings": common, "e2e_dump_settings": {"enable": True}}
    reading, writing = os.pipe()
    os.close(writing)  # no message follows: the run has ended
    training = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        settings = parse_settings(value, "data_dump.json")
        worker = Worker(Job(settings, "{}", str(staging), 64 << 20, training.pid, True))
        worker.run(Messages(reading))
        assert worker.summary.paused == pauses
        assert worker.summary.peak == 4 * ((megabytes << 20) + 128)  # the header of a .npy file has 128 bytes
        assert sent == [(training.pid, signal.SIGSTOP), (training.pid, signal.SIGCONT)][: 2 * pauses]
        assert training.poll() is None
    finally:
        os.close(reading)
        training.kill()
        training.communicate()
