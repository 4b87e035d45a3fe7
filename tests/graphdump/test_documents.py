"""The data_dump.json files of seeds 002 and 004 run with only `path` replaced; so do their environment variables."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from msprobe.graphdump import GraphDump

FILES = json.loads((Path(__file__).parent / "data" / "seed_data_dumps.json").read_text(encoding="utf-8"))
SCRIPT = """
import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.dataset import GeneratorDataset
ms.set_context(mode=ms.GRAPH_MODE)

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.print = ops.Print()
        self.weight = ms.Parameter(ms.Tensor([1.0, 2.0, 3.0]), name="weight")
    def construct(self, x):
        y = ops.exp(x * self.weight)
        self.print(y)
        return y.sum()

class Stop(ms.train.Callback):
    def on_train_step_end(self, run_context):
        print("ended", run_context.original_args().cur_step_num - 1, flush=True)
        if run_context.original_args().cur_step_num == 7:
            run_context.request_stop()

net = Net()
data = GeneratorDataset([(np.full(3, 0.1 * step, np.float32),) for step in range(20)], ["x"], shuffle=False)
train = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), learning_rate=0.01)).set_train()
ms.train.Model(train).train(1, data, callbacks=[Stop()], dataset_sink_mode=False)
"""
CASES = [
    ("002, Ascend O0/O1", "--config", False),
    ("002, CPU/GPU", "MINDSPORE_DUMP_CONFIG", False),
    ("004, synchronous", "--config", True),
    ("004, asynchronous", "MINDSPORE_DUMP_CONFIG", True),
]
NAME = re.compile(r"\w+\.[\w-]+\.\d+\.\d+\.\d{16}\.(input|output)\.\d+\.\w+\.\w+\.npy")


def run(top: Path, file: str, given_by: str, without_path: bool) -> subprocess.CompletedProcess[str]:
    """`without_path`: the dump goes where MS_DIAGNOSTIC_DATA_PATH says, and outputs without meaning are dumped too."""
    content = json.loads(json.dumps(FILES[file]))
    content["common_dump_settings"]["path"] = "" if without_path else str(top / "debug_dump")
    config, script = top / "data_dump.json", top / "train.py"
    config.write_text(json.dumps(content))
    script.write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    if without_path:
        environment.update(MS_DIAGNOSTIC_DATA_PATH=str(top), MINDSPORE_DUMP_IGNORE_USELESS_OUTPUT="0")
    command = [sys.executable, "-m", "msprobe", "graph", "dump"]
    if given_by == "--config":
        command += ["--config", str(config)]
    else:
        environment[given_by] = str(config)
    return subprocess.run(
        [*command, str(script)], env=environment, capture_output=True, text=True, timeout=300, cwd=top
    )


@pytest.mark.parametrize(("file", "given_by", "without_path"), CASES, ids=[case[0] for case in CASES])
def test_each_file_of_the_documents_runs(tmp_path: Path, file: str, given_by: str, without_path: bool):
    ended = run(tmp_path, file, given_by, without_path)
    assert ended.returncode == 0, ended.stderr
    assert [line for line in ended.stdout.splitlines() if line.startswith("ended")] == [f"ended {n}" for n in range(7)]
    rank = tmp_path / "debug_dump" / "rank_0"
    assert sorted(path.name for path in (rank / "ResNet50" / "0").iterdir()) == ["0", "5", "6", "constants"]
    assert sorted(path.name for path in (rank / "graphs").iterdir()) == [
        "ms_output_trace_code_graph_0.ir",
        "ms_output_trace_code_graph_0.pb",
    ]
    assert sorted(path.name for path in (rank / "execution_order").iterdir()) == [
        "ms_execution_order_graph_0.csv",
        "ms_global_execution_order_graph_0.csv",
    ]
    assert (rank / ".dump_metadata" / "data_dump.json").is_file()
    names = [path.name for path in (rank / "ResNet50" / "0" / "5").iterdir()]
    assert [name for name in names if NAME.fullmatch(name) is None] == []
    dump = GraphDump(tmp_path / "debug_dump")
    tensors = [one for one in dump.tensors if one.iteration == 5]
    assert {(one.type, one.io) for one in tensors} >= {("Exp", "input"), ("Exp", "output"), ("Parameter", "output")}
    (before,) = (one for one in tensors if (one.type, one.io) == ("Exp", "input"))
    (after,) = (one for one in tensors if (one.type, one.io) == ("Exp", "output"))
    assert before.path is not None
    assert after.path is not None
    np.testing.assert_allclose(np.load(after.path), np.exp(np.load(before.path)), rtol=1e-6)
    assert (("Print", "output") in {(one.type, one.io) for one in tensors}) is without_path
    assert ("the dump is synchronous anyway on this device" in ended.stderr) is ("asynchronous" in file)
