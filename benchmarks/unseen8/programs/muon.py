"""A deep MLP for tables: Muon for the matrices, AdamW for the rest, quantile loss, feature scaling."""

import sys

import torch
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(22)


def orthogonal(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    transposed = x.shape[0] > x.shape[1]
    if transposed:
        x = x.T
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if transposed else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("buffer", torch.zeros_like(p))
                buffer.mul_(group["momentum"]).add_(p.grad)
                g = p.grad.add(buffer, alpha=group["momentum"])
                update = orthogonal(g) * max(1, p.shape[0] / p.shape[1]) ** 0.5
                p.add_(update, alpha=-group["lr"])


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.category = nn.Embedding(5, 4)
        self.first = nn.Linear(10, 16)
        self.hidden = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.out = nn.Linear(16, 3)

    def forward(self, numbers, categories):
        x = torch.cat([numbers, self.category(categories)], dim=1)
        x = torch.tanh(self.first(x))
        for layer in self.hidden:
            x = x + nn.functional.mish(layer(x))
        return self.out(x)


model = Tabular()
matrices = [layer.weight for layer in model.hidden] + [model.first.weight]
rest = [p for p in model.parameters() if all(p is not m for m in matrices)]
optimizers = [Muon(matrices), torch.optim.AdamW(rest, lr=3e-3)]
numbers, categories = 5 * torch.randn(2, 9, 6) + 3, torch.randint(0, 5, (2, 9))
labels = torch.randn(2, 9)
quantiles = torch.tensor([0.1, 0.5, 0.9])
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    scaled = (numbers[step] - 3.0) / 5.0
    error = labels[step][:, None] - model(scaled, categories[step])
    loss = torch.maximum(quantiles * error, (quantiles - 1) * error).mean()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
