"""MindSpore scripts with one planted source of nondeterminism each, and the cause that `msprobe again` must name."""

from __future__ import annotations

from textwrap import indent
from typing import NamedTuple

_SCRIPT = """
import pathlib, random, time
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE)
{seeds}
mark = pathlib.Path("mark")
first = not mark.exists()  # the first run of the script
mark.touch()


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm([16]), nn.Dropout(p={drop})
        self.up, self.down = nn.Dense(16, 32), nn.Dense(32, 16)

    def construct(self, x):
        h = ops.gelu(self.up(self.norm(x)))
{inside}
        return x + self.drop(self.down(h))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.SequentialCell(Block(), Block()), nn.Dense(16, 4)

    def construct(self, x):
        return self.head(self.blocks(x))


def flip(tensor, element=5, bit=20):
    values = tensor.asnumpy().copy()
    values.view(np.int32).reshape(-1)[element] ^= 1 << bit
    return Tensor(values)


model = Net()
model.set_train()
optimizer = nn.Adam(model.trainable_params(), 1e-3)
numbers = np.random.default_rng(0)
data, labels = numbers.standard_normal((48, 16)).astype("f4"), numbers.integers(0, 4, 48).astype("i4")
{before}
grad = ms.value_and_grad(lambda x, y: ops.cross_entropy(model(x), y), None, optimizer.parameters)
for step in range(3):
    batch, target = Tensor(data[step * 16 : step * 16 + 16]), Tensor(labels[step * 16 : step * 16 + 16])
{each}
    loss, gradients = grad(batch, target)
{after}
    optimizer(gradients)
"""
_SEEDS = "ms.set_seed(1); random.seed(0)"


class Plant(NamedTuple):
    """`cause` is the word of the answer; "" for a script that repeats itself."""

    cause: str
    before: str = ""
    each: str = "pass"
    inside: str = "pass"
    after: str = "pass"
    seeds: str = _SEEDS
    drop: str = "0.0"

    @property
    def script(self) -> str:
        each, after, inside = indent(self.each, " " * 4), indent(self.after, " " * 4), indent(self.inside, " " * 8)
        parts = {"before": self.before, "seeds": self.seeds, "drop": self.drop}
        return _SCRIPT.format(each=each, after=after, inside=inside, **parts)


_RACY = """
class Racy(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = ms.Parameter(Tensor(np.ones(1, "f4")))

    def construct(self, x):
        a, total = x.asnumpy(), np.zeros(16, "f4")
        for i in np.random.default_rng().permutation(16): total = total + a[i] * np.float32(1e3)
        return Tensor(total)
model.racy, plain = Racy(), model.construct
model.construct = lambda x: plain(x + model.racy(x))
"""
_BACKWARD = """
class Racy(nn.Cell):
    def construct(self, x): return x * 2
    def bprop(self, x, out, gradient):
        return (gradient * float(1 + 1e-3 * np.random.default_rng().random()),)
model.blocks.append(Racy())
"""
_DATASET = """
import mindspore.dataset as ds
loader = ds.NumpySlicesDataset((data, labels), shuffle={shuffle}, sampler={sampler}).batch(16).create_tuple_iterator()
"""

PLANTS = {
    "no_seed": Plant("random numbers", seeds="random.seed(0)"),
    "dropout": Plant(
        "random numbers", "for p in model.get_parameters(): p.set_data(p * 0)", seeds="np.random.seed(0)", drop="0.1"
    ),
    "late_seed": Plant(
        "random numbers", "ms.set_seed(1)", seeds="np.random.seed(0)", drop="0.1"
    ),
    "time_seed": Plant("random numbers", seeds="ms.set_seed(time.time_ns() % 100000)"),
    "evaluation_draws": Plant("random numbers", each="if step == 1 and first: ops.dropout(batch, 0.5)", drop="0.1"),
    "numpy": Plant(
        "random numbers",
        "np.random.seed(None)",
        each="batch = Tensor(np.random.randn(16, 16).astype('f4'))",
    ),
    "shuffle": Plant(
        "random numbers",
        each="order = list(range(16)); random.shuffle(order); batch = batch[Tensor(order)]",
        seeds="ms.set_seed(1); random.seed(None)",
    ),
    "dataset_order": Plant(
        "data", _DATASET.format(shuffle=None, sampler="list(map(int, np.random.default_rng().permutation(48)))"),
        each="batch, target = next(loader)",
    ),
    "set": Plant(
        "data", "numbers = {f'w{i}': i for i in range(48)}\ndata = data[[numbers[w] for w in set(numbers)]]"
    ),
    "own_cell": Plant("operator", _RACY),
    "own_backward": Plant("argument", _BACKWARD),
    "flipped_output": Plant("bit flip", inside="if first and step == 1: h = flip(h)"),
    "flipped_weight": Plant(
        "bit flip",
        each="if first and step == 1: w = model.blocks[1].up.weight; w.set_data(flip(w))",
    ),
    "flipped_gradient": Plant(
        "bit flip", after="if first and step == 1: gradients = (*gradients[:-2], flip(gradients[-2]), gradients[-1])"
    ),
    "clock": Plant("argument", each="batch = batch * (1.0 + time.time_ns() % 1000 / 1e4)"),
    "decision": Plant("control flow", each="if first and step == 1: batch = batch * 2"),
    "numpy_write": Plant(
        "unrecorded change", inside="h = Tensor(h.asnumpy() * np.float32(1.5 if first else 1.25))"
    ),
}  # fmt: skip

CLEAN = {
    "plain": Plant(""),
    "dropout": Plant("", drop="0.3"),
    "dataset": Plant("", _DATASET.format(shuffle=True, sampler=None), each="batch, target = next(loader)"),
    "numpy_data": Plant("", each="batch = Tensor(np.random.randn(16, 16).astype('f4'))"),
    "one_seed": Plant(
        "", seeds="ms.set_seed(1)", each="order = random.sample(range(16), 16); batch = batch[Tensor(order)]"
    ),
}
