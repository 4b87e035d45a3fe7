"""Scripts with one planted source of nondeterminism each, and the cause that `msprobe again` must name."""

from __future__ import annotations

from textwrap import indent
from typing import NamedTuple

_SCRIPT = """
import os, pathlib, random, time
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

{seeds}
mark = pathlib.Path("mark")
first = not mark.exists()  # the first run of the script
mark.touch()
print("training")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(16), nn.Dropout({drop})
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        h = F.gelu(self.up(self.norm(x)))
{inside}
        return x + self.drop(self.down(h))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(16, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def flip(tensor, element=5, bit=20):
    tensor.detach().numpy().view(np.int32).reshape(-1)[element] ^= 1 << bit


model = Net()
optimizer = torch.optim.{optimizer}(model.parameters(), lr=1e-3)
data, labels = torch.randn(48, 16), torch.randint(0, 4, (48,))
{before}
for step in range(3):
    batch, target = data[step * 16 : step * 16 + 16], labels[step * 16 : step * 16 + 16]
{each}
    loss = F.cross_entropy(model(batch), target)
    loss.backward()
{after}
    optimizer.step()
    optimizer.zero_grad()
"""
_SEEDS = "torch.manual_seed(0); np.random.seed(0); random.seed(0)"


class Plant(NamedTuple):
    """`cause` is the word of the answer; "" for a script that repeats itself."""

    cause: str
    before: str = ""
    each: str = "pass"
    inside: str = "pass"
    after: str = "pass"
    seeds: str = _SEEDS
    drop: str = "0.0"
    optimizer: str = "AdamW"

    @property
    def script(self) -> str:
        parts = {"before": self.before, "seeds": self.seeds, "drop": self.drop, "optimizer": self.optimizer}
        each, after, inside = indent(self.each, " " * 4), indent(self.after, " " * 4), indent(self.inside, " " * 8)
        return _SCRIPT.format(each=each, after=after, inside=inside, **parts)


_WORKER = """
class Noisy(torch.utils.data.Dataset):
    def __len__(self): return 48
    def __getitem__(self, i): return data[i] + float(np.random.rand()), labels[i]
def seed_worker(number): np.random.seed({seed})
loader = iter(torch.utils.data.DataLoader(Noisy(), batch_size=16, num_workers=1, worker_init_fn=seed_worker))
"""
_ATOMIC = """
@torch.library.custom_op("plant::atomic_sum", mutates_args=())
def atomic_sum(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x[0])
    for i in np.random.default_rng().permutation(16):
        total = total + x[i] * 1.1
    return total
"""
_RACY = """
class Racy(nn.Module):
    def __init__(self): super().__init__(); self.w = nn.Parameter(torch.ones(1))
    def forward(self, x):
        a, total = x.detach().numpy(), np.zeros(16, "float32")
        for i in np.random.default_rng().permutation(16): total = total + a[i] * np.float32(1e3)
        return torch.from_numpy(total)
model.racy = Racy()
plain = model.forward
model.forward = lambda x: plain(x + model.racy(x))
"""
_THREADED = """
from concurrent.futures import ThreadPoolExecutor, as_completed
@torch.library.custom_op("plant::threaded", mutates_args=())
def threaded(x: torch.Tensor) -> torch.Tensor:
    total, rows, waits = torch.zeros(4, 16), torch.arange(16) % 4, np.random.default_rng().random(16)
    def part(i): time.sleep(waits[i] / 100); return i
    with ThreadPoolExecutor(16) as pool:
        for done in as_completed([pool.submit(part, i) for i in range(16)]):
            i = done.result()
            {write}
    return total
"""
_INDEX_ADD = _THREADED.format(write="total.index_add_(0, rows[i : i + 1], x[i : i + 1] * 1e3)")
_SCATTER_ADD = _THREADED.format(write="total.scatter_add_(0, rows[i].expand(1, 16), x[i : i + 1] * 1e3)")
_TUNED = """
@torch.library.custom_op("plant::tuned", mutates_args=())
def tuned(x: torch.Tensor) -> torch.Tensor:
    return x * 3.0 / 7.0 if first else x * (3.0 / 7.0)
"""
_BACKWARD = """
class Racy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, g): return g * 2 * float(1 + 1e-3 * np.random.default_rng().random())
"""
_HOOK = """
def flip_gradient(module, given, taken):
    if first and step == 1: flip(given[0])
model.blocks[1].norm.register_full_backward_hook(flip_gradient)
"""
_EMPTY = """junk = [torch.full((64,), float(time.time_ns() % 1000)) for _ in range(50)]; del junk
batch = batch + torch.empty(16, 16).nan_to_num(0, 0, 0).clamp(-1, 1)"""

PLANTS = {
    "no_seed": Plant("random numbers", seeds="random.seed(0); np.random.seed(0)", drop="0.1"),
    "dropout": Plant("random numbers", "torch.seed()", drop="0.1"),
    "time_seed": Plant("random numbers", seeds="torch.manual_seed(time.time_ns() % 100000)"),
    "evaluation_draws": Plant("random numbers", each="if step == 1 and first: torch.rand(37)", drop="0.1"),
    "other_state": Plant(
        "random numbers", each="if first: torch.set_rng_state(torch.Generator().get_state())", drop="0.1"
    ),
    "numpy": Plant(
        "random numbers",
        each="batch = torch.from_numpy(np.random.randn(16, 16).astype('f4'))",
        seeds="torch.manual_seed(0)",
    ),
    "shuffle": Plant(
        "random numbers",
        each="order = list(range(16)); random.shuffle(order); batch = batch[order]",
        seeds="torch.manual_seed(0); np.random.seed(0)",
    ),
    "own_generator": Plant(
        "random numbers",
        inside="h = h + 0.1 * torch.randn(h.shape, generator=torch.Generator().manual_seed(time.time_ns() % 10**6))",
    ),
    "worker": Plant("data", _WORKER.format(seed="time.time_ns() % 2**31"), each="batch, target = next(loader)"),
    "set": Plant(
        "data order", "numbers = {f'w{i}': i for i in range(48)}\ndata = data[[numbers[w] for w in set(numbers)]]"
    ),
    "permutation": Plant(
        "data order", "data = data[torch.from_numpy(np.random.default_rng().permutation(48))]"
    ),
    "dictionary": Plant(
        "wiring",
        "order = sorted('abcd', key=lambda word: hash(word + 'x'))",
        inside="parts = dict(a=h.sin(), b=h.cos(), c=h.tanh(), d=h.exp())\nh = h + parts[order[step]] * 0.1",
    ),
    "own_kernel": Plant("operator", _ATOMIC, each="batch = batch + torch.ops.plant.atomic_sum(batch * 1e3)"),
    "index_add": Plant("operator", _INDEX_ADD, each="batch = batch + torch.ops.plant.threaded(batch).repeat(4, 1)"),
    "scatter_add": Plant("operator", _SCATTER_ADD, each="batch = batch + torch.ops.plant.threaded(batch).repeat(4, 1)"),
    "own_module": Plant("operator", _RACY),
    "backward": Plant("argument", _BACKWARD, inside="h = Racy.apply(h)"),
    "choice": Plant("choice per process", _TUNED, each="batch = torch.ops.plant.tuned(batch)"),
    "empty": Plant("uninitialised memory", each=_EMPTY),
    "threads": Plant(
        "thread count",
        "torch.set_num_threads(1 if first else 2); big = torch.randn(1 << 20)",
        each="batch = batch + big.sum() * 1e-3",
    ),
    "flipped_output": Plant("bit flip", inside="if first and step == 1: flip(h)"),
    "flipped_weight": Plant("bit flip", each="if first and step == 1: flip(model.blocks[1].up.weight)"),
    "flipped_late": Plant("bit flip", each="if not first and step == 2: flip(model.head.weight)", optimizer="SGD"),
    "flipped_gradient": Plant("bit flip", after="if first and step == 1: flip(model.head.weight.grad)"),
    "flipped_inside": Plant("bit flip", _HOOK, each="batch.requires_grad_()"),
    "late_numpy_seed": Plant(
        "random numbers",
        "np.random.seed(time.time_ns() % 2**31)",
        each="batch = torch.from_numpy(np.random.randn(16, 16).astype('f4'))",
    ),
    "numpy_write": Plant("unrecorded change", inside="a = h.detach().numpy(); a *= 1.5 if first else 1.25"),
    "decision": Plant("control flow", each="if first and step == 1: batch = batch * 2"),
    "clock": Plant("argument", each="batch = batch * (1.0 + time.time_ns() % 1000 / 1e4)"),
}  # fmt: skip

CLEAN = {
    "plain": Plant(""),
    "dropout": Plant("", drop="0.3"),
    "numpy_data": Plant("", each="batch = torch.from_numpy(np.random.randn(16, 16).astype('f4'))"),
    "shuffle": Plant("", each="order = list(range(16)); random.shuffle(order); batch = batch[order]"),
    "worker": Plant("", _WORKER.format(seed="7 + number"), each="batch, target = next(loader)"),
    "unused_numpy": Plant("", seeds="torch.manual_seed(0)"),
    "empty_filled": Plant("", each="buffer = torch.empty(16, 16); buffer.copy_(batch); batch = buffer"),
    "empty_unused": Plant("", each="buffer = torch.empty(16, 16); batch = batch.clone()"),
    "set_of_numbers": Plant("", "data = data[[i for i in set(range(48))]]"),
    "own_generator": Plant("", inside="h = h + torch.randn(h.shape, generator=torch.Generator().manual_seed(3))"),
    "autocast": Plant("", "torch.autocast('cpu', torch.bfloat16).__enter__()"),
    "no_grad": Plant("", each="with torch.no_grad(): model(batch)", optimizer="SGD"),
}
