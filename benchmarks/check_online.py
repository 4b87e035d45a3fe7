"""What the online check costs the training side: CPU time of the run and its sender, over the tensor task's alone.

    python benchmarks/check_online.py [STEPS]

The sender's start-up (Python and numpy, once a run) is measured apart and left out.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LIMIT = 1.15
_SUBREAPER = 36
TRAIN = """
import json, os, sys, time
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
print("CPU", time.process_time() - started)
"""


def train(path: Path, steps: int, section: dict[str, Any]) -> float:
    """CPU seconds of `steps` steps after the first, in the training process itself."""
    config = path / f"train_{len(section)}.json"
    dump = path / f"dump_{len(section)}"
    config.write_text(json.dumps({"task": "tensor", "level": "L1", "dump_path": str(dump), "tensor": section}))
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, here, str(config), str(steps)], stdout=subprocess.PIPE, text=True, check=True
    )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("CPU"))
    return float(line.split()[1])


def children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start_up() -> float:
    before = children()
    subprocess.run([sys.executable, "-c", "import msprobe.check.sender"], check=True)
    return children() - before


def main() -> int:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch)
        secret = path / "secret"
        secret.write_text(secrets.token_hex(16))
        secret.chmod(0o600)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        address = {"host": "127.0.0.1", "port": port, "secret_file": str(secret)}
        checking = path / "check.json"
        checking.write_text(json.dumps({"task": "run_ut", "run_ut": {"is_online": True, **address}}))
        bare = train(path, steps, {})
        # The drain keeps up by definition: it answers each call at once, and judges nothing.
        drain = subprocess.Popen([sys.executable, "-c", DRAIN, str(checking)])
        try:
            time.sleep(2)
            training, sender = sender_cpu(drain, path, steps, {"online_run_ut": True, **address})
        finally:
            drain.kill()
        sender -= start_up()
        share = steps / (steps + 1)
        ratio = (training + sender * share) / bare
        print(f"{steps} steps: tensor task {bare:.2f} s, online {training:.2f} s and its sender {sender * share:.2f} s")
        print(
            f"online / tensor task: {ratio:.2f} (at most {LIMIT}); in the training process alone {training / bare:.2f}"
        )
        return 0 if ratio <= LIMIT else 1


def sender_cpu(drain: Any, path: Path, steps: int, section: dict[str, Any]) -> tuple[float, float]:
    """(training, sender): the sender outlives the run, so that this process inherits it and waits for it."""
    training = train(path, steps, section)
    before = children()
    pid = -1
    while pid in (-1, drain.pid):
        pid, _ = os.wait()
    return training, children() - before


DRAIN = """
import sys, shutil, tempfile, time
from pathlib import Path
from msprobe.check.inbox import Inbox
from msprobe.check.receiver import Listener
from msprobe.config import load
inbox = Inbox(Path(tempfile.mkdtemp()), print)
listener = Listener(load("pytorch", sys.argv[1], task="run_ut").section, inbox)
while True:
    arrival = inbox.take()
    if arrival is None:
        time.sleep(0.001)
        continue
    if arrival.task is not None:
        shutil.rmtree(arrival.task["rank"])
    arrival.answer()
"""

if __name__ == "__main__":
    raise SystemExit(main())
