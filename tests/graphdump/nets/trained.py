"""Three steps of training in graph mode; prints each loss exactly. Usage: trained.py [burst|raise|mark|wide] …

burst: one product overflows in step 1; raise: Cholesky refuses its input in step 2; mark: set_dump on one Cell;
wide: tensors of eight megabytes; script:FILE calls msprobe.mindspore.graph.graph_dump(FILE) first; late: after the
first step; kill: the process ends without warning after step 1; long: a class name too long
for file names.
"""

import os
import signal
import sys

import mindspore as ms
import numpy as np
from mindspore import nn, ops

words = sys.argv[1:]
files = [word.split(":", 1)[1] for word in words if word.startswith("script:")]


def dump():
    from msprobe.mindspore import graph_dump

    graph_dump(files[0], disk_budget=1 << 27)


if files and "late" not in words:
    dump()
width = 1024 if "wide" in words else 4


class Trained(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(4, width, weight_init="ones", bias_init="zeros")
        self.norm = nn.LayerNorm((width,))
        self.second = nn.Dense(width, 4, weight_init="ones", bias_init="zeros")
        self.table = ms.Tensor(np.arange(16, dtype=np.float32).reshape(4, 4))
        self.positive = ms.Tensor(np.eye(3, dtype=np.float32))

    def construct(self, x, scale, sign):
        y = self.second(self.norm(ops.relu(self.first(x))))
        y = y * scale + ops.gather(self.table, ops.cast(x[0], ms.int32), 0)[0]
        half = ops.cast(y, ms.bfloat16) * 2
        root = ops.cholesky(self.positive * sign)
        return y.mean() + ops.cast(half, ms.float32).mean() + root.sum() * 0.5


if "long" in words:
    Trained.__name__ = "Trained" * 30
ms.set_context(mode=ms.GRAPH_MODE)
net = Trained()
if "mark" in words:
    ms.set_dump(net.second)
optimizer = nn.Momentum(net.trainable_params(), learning_rate=0.01, momentum=0.9)
train = nn.TrainOneStepCell(net, optimizer).set_train()
rows = 2048 if "wide" in words else 4
for step in range(3):
    x = ms.Tensor(np.arange(rows * 4, dtype=np.float32).reshape(rows, 4) % 4 + step % 2 * 0.25)
    scale = ms.Tensor(np.float32(3e38 if "burst" in words and step == 1 else 1.5))
    sign = ms.Tensor(np.float32(-1 if "raise" in words and step == 2 else 1))
    print(step, float(train(x, scale, sign)).hex(), flush=True)
    if "kill" in words and step == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if files and "late" in words:
        dump()
