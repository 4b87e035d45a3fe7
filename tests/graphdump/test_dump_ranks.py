"""Two ranks under msrun, each with its worker and its directory; support_device chooses among them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from msprobe.graphdump import GraphDump

SCRIPT = """
import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.communication import get_rank, init
ms.set_context(mode=ms.GRAPH_MODE)
init()
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.reduce = ops.AllReduce()
    def construct(self, x):
        return self.reduce(x * 2) + 1
net = Net()
for step in range(2):
    print("result", get_rank(), net(ms.Tensor(np.full(3, get_rank() + step + 1.0, np.float32))), flush=True)
"""
LAUNCH = "import sys\nfrom msprobe.cli import main\nsys.exit(main())\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_each_rank_has_its_statistics(tmp_path: Path):
    out = tmp_path / "out"
    settings = {"path": str(out), "net_name": "N", "saved_data": "statistic", "support_device": [0, 1]}
    (tmp_path / "c.json").write_text(json.dumps({"common_dump_settings": settings}))
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "launch.py").write_text(LAUNCH)
    command = [str(Path(sys.executable).with_name("msrun")), "--worker_num=2", "--local_worker_num=2"]
    command += [
        f"--master_port={free_port()}",
        "--join=True",
        f"--log_dir={tmp_path / 'logs'}",
        "--master_addr=127.0.0.1",
    ]
    command += ["launch.py", "graph", "dump", "--config", "c.json", "train.py"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3", "PATH": path}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        text, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    logs = {path.name: path.read_text() for path in (tmp_path / "logs").glob("worker_*.log")}
    assert process.returncode == 0, (text, logs)
    assert "result 1 [7. 7. 7.]" in logs["worker_1.log"]
    dump = GraphDump(out)
    assert dump.ranks == (0, 1)
    reduced = [t for t in dump.tensors if t.type == "AllReduce" and t.io == "output" and t.iteration == 0]
    assert [tensor.row["Max Value"] for tensor in reduced if tensor.row] == ["6.0", "6.0"]
    assert not (out / "msprobe_staging").exists()
