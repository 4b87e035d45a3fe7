"""A network that becomes several graphs: one operator type in each, so that numbering runs across them.

Usage: branches.py DUMP [key=value]
"""

import json
import os
import sys
from pathlib import Path

out = Path(sys.argv[1]).resolve()
out.mkdir(parents=True, exist_ok=True)
settings = {
    "dump_mode": 0,
    "path": str(out),
    "net_name": "Branches",
    "iteration": "all",
    "saved_data": "tensor",
    "input_output": 0,
    "kernels": [],
    "support_device": [0],
    "op_debug_mode": 0,
}
for argument in sys.argv[2:]:
    key, value = argument.split("=", 1)
    settings[key] = json.loads(value)
config = out / "data_dump.json"
config.write_text(json.dumps({"common_dump_settings": settings, "e2e_dump_settings": {"enable": True}}))
os.environ["MINDSPORE_DUMP_CONFIG"] = str(config)

import mindspore as ms  # noqa: E402
import numpy as np  # noqa: E402
from mindspore import nn, ops  # noqa: E402


class Cell(nn.Cell):
    def construct(self, x):
        return ops.tanh(x) + 1


class Inner(nn.Cell):
    def __init__(self):
        super().__init__()
        self.the_cell_inside = Cell()

    def construct(self, x):
        return self.the_cell_inside(x) * 2


Cell.__name__ = "CellWithAName" * 8
Inner.__name__ = "AnotherCellWithAName" * 6


class Branches(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def construct(self, x):
        low = ops.cast(x, ms.bfloat16) * 2
        twice = x * 2
        four = twice * 2
        y = self.inner(x) + twice
        if x.sum() > 0:
            y = y * 3
        else:
            y = ops.sin(y)
        return low, four, y * four


ms.set_context(mode=ms.GRAPH_MODE)
net = Branches()
for step in range(2):
    net(ms.Tensor(np.array([1, 2, 3, 4 + step], np.float32)))
Cell()(ms.Tensor(np.ones(3, np.float32)))
