"""Per-sample gradients, a custom autograd.Function, checkpointing and hooks on a small regression net."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint  # noqa: F401

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(21)


class Snake(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, a):
        ctx.save_for_backward(x, a)
        return x + torch.sin(a * x).square() / a

    @staticmethod
    def backward(ctx, g):
        x, a = ctx.saved_tensors
        wave = torch.sin(2 * a * x)
        da = (x * wave / a - torch.sin(a * x).square() / a.square()) * g
        return g * (1 + wave), da.sum(tuple(range(x.dim() - 1)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.a = nn.Linear(12, 12), nn.Parameter(torch.rand(12) + 0.5)
        self.norm = nn.LayerNorm(12)

    def forward(self, x):
        return x + Snake.apply(self.linear(self.norm(x)), self.a)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(5, 12), nn.Linear(12, 1)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x).squeeze(-1)


model = Net()
model.inp.weight.register_hook(lambda g: g * 0.5)
lrs = {name: 0.02 if "blocks" in name else 0.05 for name, _ in model.named_parameters()}
xs = torch.randn(2, 6, 5)
ys = xs.sum(-1).sin()
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    predicted = model(xs[step])
    each = F.huber_loss(predicted, ys[step], reduction="none", delta=0.5)
    loss = each.mean()
    loss.backward()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p -= lrs[name] * p.grad
    model.zero_grad()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
