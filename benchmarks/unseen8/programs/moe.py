"""A mixture of experts with top-2 routing, an auxiliary loss and momentum by hand."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(2)
WIDTH, EXPERTS, TOP, CLASSES = 16, 4, 2, 7


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x):
        return self.down(F.relu(self.up(x)))


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x):
        logits = self.router(x)
        probabilities = logits.softmax(-1)
        weights, chosen = probabilities.topk(TOP, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == number)
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, slots, None])
        load = F.one_hot(chosen, EXPERTS).sum(1).to(x.dtype).mean(0)
        balance = EXPERTS * (load * probabilities.mean(0)).sum()
        z_loss = logits.logsumexp(-1).square().mean()
        return out, balance, z_loss


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.head = nn.Linear(10, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.layers = nn.ModuleList(MoE() for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, x):
        x, balance, z_loss = self.inp(x), 0.0, 0.0
        for layer, norm in zip(self.layers, self.norms):
            y, b, z = layer(norm(x))
            x, balance, z_loss = x + y, balance + b, z_loss + z
        return self.head(x), balance, z_loss


model = Net()
momentum = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
xs, ys = torch.randn(2, 24, 10), torch.randint(0, CLASSES, (2, 24))
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    logits, balance, z_loss = model(xs[step])
    loss = F.cross_entropy(logits, ys[step]) + 0.1 * balance + 0.01 * z_loss
    loss.backward()
    with torch.no_grad():
        for name, p in model.named_parameters():
            momentum[name].mul_(0.9).add_(p.grad + 1e-3 * p)
            p -= 0.1 * momentum[name]
            p.grad = None
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
