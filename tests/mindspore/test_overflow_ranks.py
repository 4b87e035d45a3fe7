"""An overflow that passes through a real collective is followed to its rank; one made inside it is reported as such."""

from __future__ import annotations

import json

import pytest
from mscollecting import configured
from msranks import needs_msrun, run_two

from msprobe.cli import main

SCRIPT = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Tensor, mint, nn, ops
from mindspore.communication import get_rank, init
from msprobe.mindspore import PrecisionDebugger
init()
rank = get_rank()
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.reduce = ops.AllReduce()
    def construct(self, x):
        return self.reduce(x)
net = Net()
debugger = PrecisionDebugger(sys.argv[1])
for plant in ("on one rank", "inside", "waited for later", "inside a Primitive"):
    debugger.start(net)
    value = Tensor(np.full(4, 1.0 + rank), ms.float32)
    if plant == "on one rank":
        value = ops.log(value - 2.0 * rank)  # rank 1: log(0)
    else:
        value = value * 1.5e38
    if plant == "inside a Primitive":
        value = net(value)
    elif plant == "waited for later":
        handle = mint.distributed.all_reduce(value, async_op=True)
        handle.wait()
    else:
        mint.distributed.all_reduce(value)
    ops.relu(value)
    debugger.stop()
    debugger.step()
print("done", rank, flush=True)
"""
PRODUCERS = [
    ("Functional.log.0.forward", 1),
    ("MintDistributed.all_reduce.0.forward", 0),
    ("MintDistributed.all_reduce.0.forward", 0),
    ("Primitive.reduce.AllReduce.0.forward", 0),
]


@needs_msrun
@pytest.mark.parametrize("task", ["overflow_check", "statistics"])
def test_the_producer_is_found_over_two_ranks(tmp_path, task, capsys):
    config = configured(tmp_path, task=task, section={"overflow_nums": -1} if task == "overflow_check" else None)
    run_two(tmp_path, SCRIPT, config)
    for step, producer in enumerate(PRODUCERS):
        directory = str(tmp_path / "dump" / f"step{step}")
        assert main(["overflow", directory, "--json"]) == 1
        found = json.loads(capsys.readouterr().out)["producer"]
        assert (found["name"], found["rank"], found["step"]) == (*producer, step)
        assert "train.py" in found["source"]
        main(["overflow", directory])
        assert ("inside communication" in capsys.readouterr().out) == (step > 0)
