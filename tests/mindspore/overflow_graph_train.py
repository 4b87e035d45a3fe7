"""Four steps in graph mode, three of which overflow. Usage: overflow_graph_train.py CONFIG [clean|bare]"""

import sys

import mindspore as ms
import numpy as np
from mindspore import nn, ops

ms.set_context(mode=ms.GRAPH_MODE)
if "bare" not in sys.argv:
    from msprobe.mindspore import PrecisionDebugger

    PrecisionDebugger(sys.argv[1]).start()


class Net(nn.Cell):
    def construct(self, x, mask, y, z, w):
        attention = ops.softmax(x + mask)
        grown = ops.exp(y * 100.0)
        logged = ops.log(z)
        root = ops.sqrt(w)
        return attention.sum() + grown.sum() + logged.sum() + root.sum()


def column(value):
    return ms.Tensor(np.full((3,), value, np.float32))


mask = ms.Tensor(np.array([0.0, 0.0, -np.inf], np.float32))
planted = [(0.0, 1.0, 1.0), (1.0, 1.0, 1.0), (0.0, 0.0, 1.0), (0.0, 1.0, 0.0)]  # none, exp, log, gradient of sqrt
if "clean" in sys.argv:
    planted = planted[:1] * 2
train = ms.value_and_grad(Net(), (0, 2, 3, 4))
for y, z, w in planted:
    loss, gradients = train(column(1.0), mask, column(y), column(z), column(w))
    print([one.asnumpy().tobytes().hex() for one in (loss, *gradients)], flush=True)
