"""The cost of the online check on the training side: CPU time of the run and its sender, relative to the tensor task.

    python benchmarks/check_online.py [STEPS [ROUNDS]]

The tensor task, the check over TCP and the check through a shared directory alternate. The checker is always fast
enough: it confirms each call at once and checks nothing. The start-up of the sender (Python and numpy, once per run) is
measured separately and not counted.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

LIMIT = 1.15
_SUBREAPER = 36
TRAIN = """
import atexit, os, sys, time
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from models import BATCH, GPT, SEQUENCE, VOCABULARY
from msprobe.pytorch import PrecisionDebugger
torch.manual_seed(0)
model = GPT(2)
debugger = PrecisionDebugger(sys.argv[2])
tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE))
def step():
    debugger.start(model)
    torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    debugger.stop()
    debugger.step()
step()
started = time.process_time()
for _ in range(int(sys.argv[3])):
    step()
print("CPU", time.process_time() - started, flush=True)
atexit._run_exitfuncs()
os._exit(0)  # does not wait for the sender: the benchmark does
"""
DRAIN = """
import shutil, sys, tempfile, time
from pathlib import Path
from msprobe.check.online.inbox import Inbox
from msprobe.check.online.receiver import Listener
from msprobe.check.online.shared_directory import SharedDirectory
from msprobe.config import load
settings = load("pytorch", sys.argv[1], task="run_ut").section
with tempfile.TemporaryDirectory() as spool:
    inbox = Inbox(Path(spool), lambda text: None)
    way = (SharedDirectory if settings.nfs_path else Listener)(settings, inbox)
    print("ready", flush=True)
    while True:
        arrival = inbox.take()
        if arrival is None:
            time.sleep(0.001)
            continue
        if arrival.task is not None:
            shutil.rmtree(arrival.task["rank"])
        arrival.answer()
        if arrival.task is None:
            break
"""


class Cost(NamedTuple):
    """CPU milliseconds per step."""

    training: float
    sender: float = 0.0

    @property
    def both(self) -> float:
        return self.training + self.sender


def train(path: Path, steps: int, section: dict[str, Any]) -> float:
    """CPU seconds of `steps` steps after the first, in the training process."""
    config, dump = path / "train.json", path / "dump"
    config.write_text(json.dumps({"task": "tensor", "level": "L1", "dump_path": str(dump), "tensor": section}))
    command = [sys.executable, "-c", TRAIN, str(Path(__file__).parent), str(config), str(steps)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("CPU"))
    return float(line.split()[1])


def tensor_task(path: Path, steps: int) -> Cost:
    try:
        return Cost(train(path, steps, {}) / steps * 1e3)
    finally:
        shutil.rmtree(path / "dump", ignore_errors=True)


def online(path: Path, steps: int, address: dict[str, Any]) -> Cost:
    """The sender runs longer than the training, so this process inherits it and waits for it."""
    checking = path / "check.json"
    checking.write_text(json.dumps({"task": "run_ut", "run_ut": {"is_online": True, **address}}))
    drain = subprocess.Popen([sys.executable, "-c", DRAIN, str(checking)], stdout=subprocess.PIPE)
    assert drain.stdout is not None
    drain.stdout.readline()
    try:
        training = train(path, steps, {"online_run_ut": True, **address})
        sender = -start_up()
        pid = drain.pid
        while pid == drain.pid:
            pid, _, used = os.wait3(0)
        sender += used.ru_utime + used.ru_stime
    finally:
        drain.kill()
        shutil.rmtree(path / "dump", ignore_errors=True)
    return Cost(training / steps * 1e3, sender / (steps + 1) * 1e3)


def start_up() -> float:
    """The start-up of the sender: Python and its imports."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", "import msprobe.check.online.sender, msprobe.check.online.frame_mac"], check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def main() -> int:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    found: dict[str, list[Cost]] = {"tensor task": [], "online, TCP": [], "online, shared directory": []}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch)
        secret, shared = path / "secret", path / "shared"
        secret.write_text(secrets.token_hex(16))
        secret.chmod(0o600)
        shared.mkdir()
        for _ in range(rounds):
            tcp = {"host": "127.0.0.1", "port": free_port(), "secret_file": str(secret)}
            found["tensor task"].append(tensor_task(path, steps))
            found["online, TCP"].append(online(path, steps, tcp))
            found["online, shared directory"].append(online(path, steps, {"nfs_path": str(shared)}))
            time.sleep(0.1)
    bare = statistics.median(one.both for one in found["tensor task"])
    print(f"A GPT of 2 layers, {steps} steps, {rounds} rounds, medians; CPU ms per step")
    print(f"| | training | sender | share of the tensor task (at most {LIMIT}) |")
    print("|---|---|---|---|")
    worst = 0.0
    for name, costs in found.items():
        training, sender = (statistics.median(one[part] for one in costs) for part in (0, 1))
        ratio = (training + sender) / bare
        worst = max(worst, ratio)
        print(f"| {name} | {training:.1f} | {sender:.1f} | {ratio:.2f} |")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
