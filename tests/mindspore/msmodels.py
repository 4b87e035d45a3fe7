"""Small networks, and training steps of them that give their results as bytes."""

from __future__ import annotations

from typing import Any, Callable, Optional

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops


def tensor(*shape: int, seed: int = 0, dtype: Any = ms.float32) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), dtype)


class Block(nn.Cell):
    """Several kinds of call in one: Cells, Primitives, functions, operators, a Cell that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(6, 6)
        self.norm = nn.LayerNorm([6])
        self.act = ops.gelu
        self.tanh = ops.Tanh()

    def construct(self, x: Tensor) -> Tensor:
        hidden = self.act(self.first(self.norm(x)))
        return x + self.tanh(self.first(hidden)) * 0.5


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, has_bias=True)
        self.bn = nn.BatchNorm2d(2)
        self.blocks = nn.SequentialCell([Block(), Block()])
        self.head = nn.Dense(6, 3)

    def construct(self, x: Tensor) -> Tensor:
        x = ops.relu(self.bn(self.conv(x)))
        x = self.blocks(x.mean(axis=(1, 2))[:, :6])
        return self.head(x)


def batch(number: int) -> tuple[Tensor, Tensor]:
    drawn = np.random.default_rng(number)
    images = drawn.standard_normal((4, 1, 6, 6)).astype(np.float32)
    return Tensor(images), Tensor(drawn.integers(0, 3, 4).astype(np.int32))


def made(kind: Callable[[], nn.Cell], seed: int = 3) -> nn.Cell:
    """A network whose weights are the same in every run of this function."""
    net = kind()
    drawn = np.random.default_rng(seed)
    for parameter in net.get_parameters():
        if parameter.requires_grad:
            parameter.set_data(Tensor((drawn.standard_normal(parameter.shape) * 0.3).astype(np.float32)))
    return net


def trained(steps: int, around: Optional[Callable[[nn.Cell, Callable[[], Any]], Any]] = None) -> bytes:
    """Loss and weights after `steps`. `around(net, step)` runs each step, with a tool or without."""
    net = made(Net)
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    loss_function = nn.CrossEntropyLoss()
    forward = ms.value_and_grad(lambda x, y: loss_function(net(x), y), None, optimizer.parameters)
    losses = []
    for number in range(steps):

        def step(number: int = number) -> None:
            loss, gradients = forward(*batch(number))
            optimizer(gradients)
            losses.append(loss.asnumpy().tobytes())

        step() if around is None else around(net, step)
    return b"".join(losses) + b"".join(p.asnumpy().tobytes() for p in net.get_parameters())
