"""A classifier with a plain loop, to be moved to Lightning and accelerate."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(24)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
xs, ys = torch.randn(12, 8), torch.randint(0, 4, (12,))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
losses = []
debugger = PrecisionDebugger(dump_path=sys.argv[1], task=sys.argv[2], level="mix", step=[0, 1])
for step in range(2):
    debugger.start(model)
    x, y = xs[6 * step : 6 * step + 6], ys[6 * step : 6 * step + 6]
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    debugger.stop()
    debugger.step()
    losses.append(loss.item())
