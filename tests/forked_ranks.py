"""Runs scripts on several ranks as torchrun does. Each rank is a fork of this process, which imports torch once for
all of them: importing it takes most of the time of a small run.

Reads one request per line and answers with two lines: the process of the run, and its exit code. `gloo.ranks` asks.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from torch import distributed

for name in ("torch._dynamo", "torch.distributed.tensor", "torch.distributed.fsdp"):  # optimizers import the first
    importlib.import_module(name)


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    for line in sys.stdin:
        run = os.fork()
        if run == 0:
            lead(json.loads(line))
            return
        print(run, file=answers)
        print(os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]), file=answers)


def lead(request: dict[str, Any]) -> None:
    """Starts the ranks and waits for them. In the process of a rank it returns when the script has ended."""
    os.setsid()
    for number, name in ((1, "output"), (2, "errors")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    with socket.create_server(("127.0.0.1", 0)) as server:
        running = set()
        for rank in range(request["count"]):
            process = os.fork()
            if process == 0:
                be_rank(rank, server.getsockname()[1], request)
                return
            running.add(process)
        descriptor, port = os.dup(server.fileno()), server.getsockname()[1]
    store = distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
    code = 0
    while running:
        process, status = os.wait()
        running.remove(process)
        if status:
            code = 1
            for other in running:  # they would wait for it, in a loop that never ends
                with contextlib.suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
    del store
    os._exit(code)


def be_rank(rank: int, port: int, request: dict[str, Any]) -> None:
    count = str(request["count"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=count, LOCAL_WORLD_SIZE=count)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
    script = request["script"]
    sys.argv = [script, *request["arguments"]]
    sys.path[0] = str(Path(script).parent)
    kept = runpy.run_path(script, run_name="__main__")
    # torch 2.13 may wait for ever, or abort, where a DDP model is freed after its process group: nothing is freed.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if kept else 1)


if __name__ == "__main__":
    gc.freeze()  # the ranks need not look at what was imported
    serve()
