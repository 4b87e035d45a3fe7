"""Trains for ever and prints each step when the monitor has it; somebody kills it."""

from __future__ import annotations

import sys

import torch

from msprobe.pytorch import Monitor

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
monitor = Monitor(model, optimizer, {"dump_path": sys.argv[1]})
step = 0
while True:
    loss = model(torch.randn(2, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    monitor.step(loss=loss)
    print(step, flush=True)
    step += 1
