"""A network in graph mode that picks by labels; one is out of range in step 2. Usage: labels.py [caught] [script:FILE]

caught: the script catches the exception. script:FILE calls msprobe.mindspore.graph_dump(FILE) first."""

import sys

import mindspore as ms
import numpy as np
from mindspore import nn, ops

for word in sys.argv[1:]:
    if word.startswith("script:"):
        from msprobe.mindspore import graph_dump

        graph_dump(word.partition(":")[2])


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, 3)

    def construct(self, x, labels):
        return -ops.gather_elements(self.dense(x), 1, labels).mean()


ms.set_context(mode=ms.GRAPH_MODE)
net = Net()
for step in range(3):
    labels = ms.Tensor([[0], [1], [9 if step == 2 else 2]], ms.int32)
    try:
        print(float(net(ms.Tensor(np.eye(3, dtype=np.float32)), labels)))
    except RuntimeError:
        if "caught" not in sys.argv:
            raise
