"""A small graph whose every number is exact, with one seeded fault of each kind. Usage: faulty.py DUMP [key=value]"""

import json
import os
import sys
from pathlib import Path

out = Path(sys.argv[1]).resolve()
settings = {
    "op_debug_mode": 0,
    "dump_mode": 0,
    "path": str(out),
    "net_name": "Faulty",
    "iteration": "all",
    "saved_data": "tensor",
    "input_output": 0,
    "kernels": [],
    "support_device": [0],
}
for argument in sys.argv[2:]:
    key, value = argument.split("=", 1)
    settings[key] = json.loads(value)
out.mkdir(parents=True, exist_ok=True)
config = out / "data_dump.json"
config.write_text(json.dumps({"common_dump_settings": settings, "e2e_dump_settings": {"enable": True}}))
os.environ["MINDSPORE_DUMP_CONFIG"] = str(config)

import mindspore as ms  # noqa: E402
import numpy as np  # noqa: E402
from mindspore import nn, ops  # noqa: E402


def full(value):
    return ms.Tensor(np.full(4, value, np.float32))


class Faulty(nn.Cell):
    def __init__(self):
        super().__init__()
        self.scale = ms.Parameter(full(2.0), name="scale")
        self.huge, self.million, self.speck = full(2.0**127), full(2.0**24), full(2.0**-40)
        self.scaled, self.burst, self.large, self.small = ops.Mul(), ops.Mul(), ops.Mul(), ops.Mul()
        self.later, self.nothing, self.square, self.top = ops.Add(), ops.Sub(), ops.Square(), ops.TopK()

    def construct(self, x):
        scaled = self.scaled(x, self.scale)
        burst = self.burst(scaled, self.huge)
        later = self.later(burst, x)
        large = self.large(x, self.million)
        small = self.small(x, self.speck)
        nothing = self.nothing(scaled, scaled)
        steady = self.square(self.scale)
        half = ops.cast(x, ms.bfloat16)
        values, indices = self.top(x, 2)
        return later, large, small, nothing, steady, half, values, indices


ms.set_context(mode=ms.GRAPH_MODE)
net = Faulty()
for step in range(3):
    net(ms.Tensor(np.array([1, 2, 3, 4 + step], np.float32)))
