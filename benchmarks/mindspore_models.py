"""The transformer that the MindSpore benchmark trains, and one training step of it."""

from __future__ import annotations

from typing import Any, Callable

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

VOCABULARY, SEQUENCE, WIDTH, HEADS, BATCH = 128, 64, 64, 4, 8


class Attention(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Dense(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Dense(WIDTH, WIDTH)

    def construct(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, HEADS, width // HEADS)
        q = self.query(x).reshape(shape).transpose(0, 2, 1, 3)
        k = self.key(x).reshape(shape).transpose(0, 2, 3, 1)
        v = self.value(x).reshape(shape).transpose(0, 2, 1, 3)
        weights = ops.softmax(ops.matmul(q, k) / (width // HEADS) ** 0.5, -1)
        return self.out(ops.matmul(weights, v).transpose(0, 2, 1, 3).reshape(x.shape))


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm([WIDTH]), nn.LayerNorm([WIDTH])
        self.attention = Attention()
        self.up, self.act, self.down = nn.Dense(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dense(4 * WIDTH, WIDTH)

    def construct(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Transformer(nn.Cell):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.SequentialCell([Block() for _ in range(layers)])
        self.norm = nn.LayerNorm([WIDTH])
        self.head = nn.Dense(WIDTH, VOCABULARY, has_bias=False)

    def construct(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embedding(tokens))))


def transformer(layers: int, seed: int = 1) -> tuple[nn.Cell, Callable[[], Any]]:
    """A transformer, and a function that trains it for one step on a new random batch and returns the loss."""
    ms.set_seed(seed)
    model = Transformer(layers)
    optimizer = nn.AdamWeightDecay(model.trainable_params(), learning_rate=1e-3)
    batches = np.random.default_rng(seed)

    def forward(tokens: Tensor, targets: Tensor) -> Tensor:
        return ops.cross_entropy(model(tokens).reshape(-1, VOCABULARY), targets.reshape(-1))

    differentiate = ms.value_and_grad(forward, None, optimizer.parameters)

    def step() -> Any:
        drawn = batches.integers(VOCABULARY, size=(BATCH, SEQUENCE + 1))
        loss, gradients = differentiate(Tensor(drawn[:, :-1], ms.int32), Tensor(drawn[:, 1:], ms.int32))
        optimizer(gradients)
        return loss

    return model, step
