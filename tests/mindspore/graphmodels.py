"""Networks for graph mode: Cells that are called twice, nested results, arguments of every kind."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from msmodels import Net, batch, made


class Shared(nn.Cell):
    """Cells that are called twice: in a row, side by side on the same input, and from two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(6, 6)
        self.act = nn.Tanh()
        self.pair = nn.SequentialCell([nn.Dense(6, 6), self.act])
        self.head = nn.Dense(6, 3)

    def construct(self, x: Any) -> Any:
        x = self.act(self.first(self.first(x)))
        left = self.pair(x)
        right = self.pair(x * 2)
        return self.head(left + self.act(right))


class Attention(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Dense(6, 6, has_bias=False)
        self.k = nn.Dense(6, 6, has_bias=False)
        self.v = nn.Dense(6, 6)
        self.soft = nn.Softmax(-1)

    def construct(self, x: Any, memory: Any, mask: Any = None, scale: float = 1.0) -> Any:
        weights = ops.matmul(self.q(x), self.k(memory).swapaxes(-1, -2)) * scale
        if mask is not None:
            weights = weights + mask
        weights = self.soft(weights)
        return ops.matmul(weights, self.v(memory)), {"weights": weights + 0, "heads": 1}


class Layer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm([6])
        self.attention = Attention()
        self.mlp = nn.SequentialCell([nn.Dense(6, 12), nn.GELU(), nn.Dense(12, 6)])

    def construct(self, x: Any, mask: Any) -> Any:
        normed = self.norm(x)
        attended, extra = self.attention(normed, normed * 0.5, mask=mask, scale=0.4)
        x = x + attended
        return x + self.mlp(x), (extra["weights"], None)


class Transformer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.layers = nn.CellList([Layer()])
        self.head = nn.Dense(6, 3)

    def construct(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        mask = ops.ones((5, 5), ms.float32)
        for layer in self.layers:
            x, rest = layer(x, mask)
            mask = mask + rest[0] * 0.1
        return self.head(x.mean(axis=1))


class WithLoss(nn.Cell):
    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net
        self.loss = nn.CrossEntropyLoss()

    def construct(self, x: Any, label: Any) -> Any:
        return self.loss(self.net(x), label)


def rows(number: int) -> tuple[Tensor, Tensor]:
    drawn = np.random.default_rng(number)
    return Tensor(drawn.standard_normal((4, 6)).astype(np.float32)), Tensor(drawn.integers(0, 3, 4).astype(np.int32))


def tokens(number: int) -> tuple[Tensor, Tensor]:
    drawn = np.random.default_rng(number)
    drawn_tokens = Tensor(drawn.integers(0, 11, (4, 5)).astype(np.int32))
    return drawn_tokens, Tensor(drawn.integers(0, 3, 4).astype(np.int32))


NETWORKS = {"conv": (Net, batch), "shared": (Shared, rows), "transformer": (Transformer, tokens)}


def trained(kind: str, debugger: Any = None, steps: int = 3, whole: bool = False) -> bytes:
    """Losses and weights after `steps`, as bytes. `whole`: the step is one graph, its optimizer in it."""
    network, data = NETWORKS[kind]
    net = made(network)
    net.set_train()
    optimizer = nn.Adam(net.trainable_params(), 1e-2)
    if whole:
        step = nn.TrainOneStepCell(WithLoss(net), optimizer).set_train()
    else:
        forward = ms.value_and_grad(WithLoss(net), None, optimizer.parameters)

        def step(x: Any, label: Any) -> Any:
            loss, gradients = forward(x, label)
            optimizer(gradients)
            return loss

    losses = []
    for number in range(steps):
        if debugger is not None:
            debugger.start(net)
        losses.append(step(*data(number)).asnumpy().tobytes())
        if debugger is not None:
            debugger.step()
    return b"".join(losses) + b"".join(p.asnumpy().tobytes() for p in net.get_parameters())
