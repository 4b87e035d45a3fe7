"""Three steps in graph mode under PrecisionDebugger.

Usage: graph_train.py CONFIG [late|burst|bare|model|resumed|apart]"""

import sys

import mindspore as ms
import numpy as np
from mindspore import nn, ops

words = sys.argv[2:]
ms.set_context(mode=ms.GRAPH_MODE)
debugger = None
if "bare" not in words:
    from msprobe.mindspore import MsprobeStep, PrecisionDebugger

    debugger = PrecisionDebugger(sys.argv[1])
    if "late" not in words:
        debugger.start()


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4, weight_init="ones", bias_init="zeros")

    def construct(self, x):
        return ops.exp(self.dense(x)).mean()


net = Net()
train = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), learning_rate=0.01)).set_train()


def batch(step):
    return ms.Tensor(np.full((2, 4), 30.0 if "burst" in words and step == 1 else 0.1 * step, np.float32))


if "model" in words:
    dataset = ms.dataset.GeneratorDataset([(batch(step).asnumpy(),) for step in range(3)], ["x"], shuffle=False)
    model = ms.train.Model(train)
    callbacks = [MsprobeStep(debugger)]
    if "resumed" in words:
        from msprobe.mindspore import MsprobeInitStep

        model.train(3, dataset, callbacks=[*callbacks, MsprobeInitStep()], dataset_sink_mode=False, initial_epoch=2)
    else:
        model.train(1, dataset, callbacks=callbacks, dataset_sink_mode=False)
elif "apart" in words:  # the optimizer is a graph of its own
    optimizer = nn.SGD(net.trainable_params(), learning_rate=0.01)
    forward = ms.value_and_grad(net, None, optimizer.parameters)
    for step in range(3):
        optimizer(forward(batch(step))[1])
else:
    for step in range(3):
        print(step, float(train(batch(step))).hex(), flush=True)
        if debugger is not None:
            if step == 0 and "late" in words:
                debugger.start()
            debugger.stop()
            debugger.step()
