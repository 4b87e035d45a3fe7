"""Four steps in dynamic mode with compiled regions, under PrecisionDebugger at level L2.

Usage: region_train.py CONFIG|bare [model|late|once|train|functions]. once: start() before the model is made, and
nothing more (MindSpore's guide, level L2); train: by mindspore.train.Model; functions: two steps without a Cell."""

import sys

import mindspore as ms
import numpy as np
from mindspore import nn, ops

config, words = sys.argv[1], sys.argv[2:]
ms.set_context(mode=ms.PYNATIVE_MODE)
debugger = None
if config != "bare":
    from msprobe.mindspore import PrecisionDebugger

    debugger = PrecisionDebugger(config)
    if "once" in words:
        debugger.start()


@ms.jit
def doubled(x):
    return ops.sin(x) * 2


if "functions" in words:  # a loop without a Cell
    for step in range(2):
        debugger.start()
        ops.exp(doubled(ms.Tensor(np.full((2, 3), step, np.float32))))
        debugger.stop()
        debugger.step()
    sys.exit()


class Inner(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(4, 4, weight_init="ones", bias_init="zeros")

    @ms.jit
    def construct(self, x):
        return ops.tanh(self.fc(x))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(4, 4, weight_init="ones", bias_init="zeros")
        self.inner = Inner()

    def construct(self, x):
        return ops.square(self.inner(self.first(x))).sum()


net = Net()
optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
train = ms.value_and_grad(net, None, optimizer.parameters)
if "late" in words:
    doubled(ms.Tensor(np.zeros(2, np.float32)))
if "once" in words:
    debugger = None
if "train" in words:
    batches = [np.full(4, 0.01 * step, np.float32) for step in range(4)]
    dataset = ms.dataset.GeneratorDataset(batches, ["data"], shuffle=False).batch(1)
    trainer = ms.train.Model(net, optimizer=optimizer)
    trainer.train(1, dataset, dataset_sink_mode=False)
    sys.exit()
for step in range(4):
    if debugger is not None:
        debugger.start(net if "model" in words else None)
    for turn in (0.0, 0.5):
        doubled(ms.Tensor(np.full((2, 3), step + turn, np.float32)))
    loss, gradients = train(ms.Tensor(np.full((2, 4), 0.01 * step + 0.01, np.float32)))
    optimizer(gradients)
    if debugger is not None:
        debugger.stop()
        doubled(ms.Tensor(np.full((2, 3), 100.0 + step, np.float32)))  # between steps: not wanted
        debugger.step()
    print(step, float(loss).hex(), float(net.first.weight.sum()).hex(), flush=True)
