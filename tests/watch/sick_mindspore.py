"""The same small model and the same plants on MindSpore."""

from __future__ import annotations

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from msprobe.mindspore import Monitor

K = 60


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(16, 16)
        self.scale = 1.0

    def construct(self, x):
        return ops.relu(self.fc(x)) * self.scale


class Experts(nn.Cell):
    def __init__(self):
        super().__init__()
        self.router = nn.Dense(16, 2)
        self.experts = nn.CellList([nn.Dense(16, 16) for _ in range(2)])
        self.lean = Tensor(np.tile(np.array([[2.0, -2.0], [-2.0, 2.0]], "float32"), (16, 1)))

    def construct(self, x):
        gate = ops.softmax(self.router(x) + self.lean, -1)
        chosen = ops.argmax(gate, -1)
        first, second = (expert(x) * gate[:, n : n + 1] for n, expert in enumerate(self.experts))
        return x + ops.where((chosen == 0).reshape(-1, 1), first, second)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.blocks = nn.SequentialCell(*(Block() for _ in range(3)))
        self.moe = Experts()
        self.head = nn.Dense(16, 4)

    def construct(self, x):
        return self.head(self.moe(self.blocks(x)))


class Training:
    def __init__(self, seed=0, dead_column=False, eps=1e-8, weight_decay=0.0, rate=1e-3):
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
        mindspore.set_seed(seed)
        np.random.seed(seed)
        self.model = Net()
        parameters = list(self.model.trainable_params())
        self.optimizer = nn.AdamWeightDecay(parameters, rate, eps=eps, weight_decay=weight_decay)
        self.data = np.random.RandomState(seed + 1)
        self.teacher = np.random.RandomState(99).randn(16, 4).astype("float32")
        self.dead_column = dead_column
        self.factor = 1.0
        self.clip = None
        self.poison = False
        self.skipped: set[str] = set()
        self.criterion = nn.CrossEntropyLoss()
        self.gradient = mindspore.value_and_grad(self.forward, None, self.optimizer.parameters)

    def forward(self, x, y):
        return self.criterion(self.model(x), y) * self.factor

    def step(self):
        x = self.data.randn(32, 16).astype("float32")
        if self.dead_column:
            x[:, 3] = 0
        y = (x @ self.teacher).argmax(-1).astype("int32")
        if self.poison:
            x[0, 0] = float("nan")
        loss, gradients = self.gradient(Tensor(x), Tensor(y))
        if self.clip is not None:
            gradients = ops.clip_by_global_norm(gradients, self.clip)
        saved = [(p, p.asnumpy().copy()) for p in self.optimizer.parameters if p.name in self.skipped]
        self.optimizer(gradients)
        for parameter, value in saved:
            parameter.set_data(Tensor(value))
        return float(loss.asnumpy()) / self.factor


def run(path, plant, steps, config, seed=0, **options):
    if plant is adam_epsilon:
        options["eps"] = 1e-45
    if plant is high_learning_rate:
        options["rate"] = [1e-3] * K + [5.0] * steps
    training = Training(seed, **options)
    monitor = Monitor(training.model, training.optimizer, {"dump_path": str(path), **config})
    for step in range(steps):
        plant(training, step)
        monitor.step(loss=training.step())
    monitor.close()
    return training


def put(parameter, value):
    parameter.set_data(Tensor(np.asarray(value, "float32")))


def exploding_layer(training, step):
    if step == K:
        weight = training.model.blocks[1].fc.weight
        put(weight, weight.asnumpy() * 1000)


def dead_relu(training, step):
    if step == K:
        put(training.model.blocks[1].fc.bias, np.full(16, -100))


def high_learning_rate(training, step):
    """Planted by the options of the optimizer: a schedule that jumps at step K."""


def weight_decay(training, step):
    """A decay that somebody applies beside the optimizer."""
    if step >= K:
        for parameter in training.optimizer.parameters:
            put(parameter, parameter.asnumpy() * 0.98)


def frozen_block(training, step):
    if step == K:
        training.skipped = {p.name for p in training.model.blocks[1].get_parameters()}


def underflow(training, step):
    if step == K:
        training.factor = 1e-7


def saturation(training, step):
    if step == K:
        training.model.blocks[1].scale = 1e4


def nan_data(training, step):
    training.poison = step == K


def adam_epsilon(training, step):
    """Planted by the options of the optimizer: eps is 0."""


def clipped(training, step):
    training.clip = 1e-9 if step >= K else None


def router_collapse(training, step):
    if step == K:
        put(training.model.moe.router.bias, [1e4, -1e4])


def vanishing(training, step):
    if step == K:
        training.model.blocks[1].scale = 1e-9
        put(training.model.blocks[2].fc.bias, np.full(16, 0.5))


def lost_state(training, step):
    if step >= K:
        for state in training.optimizer.moments2:
            if "blocks.1" in state.name:
                put(state, np.zeros(state.shape))


def healthy(training, step):
    pass
