"""Collects the runs that `collected_targets` damages: python collect_runs.py DIRECTORY.

`training` and `training_golden` have every event of training.json; `closed` and `open` are the same model compiled, as
one record and node by node.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

from msprobe.pytorch import PrecisionDebugger


def train(root: Path, name: str, eps: float = 1e-5, compile: str = "") -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4, eps=eps), nn.Linear(4, 1))
    run = torch.compile(model, backend="eager") if compile else model
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    config = root / f"{name}.json"
    config.write_text(f'{{"task": "tensor", "level": "mix", "compile": "{compile or "closed"}", "tensor": {{}}}}')
    debugger = PrecisionDebugger(config_path=str(config), dump_path=str(root / name), step=[0])
    debugger.start(model)
    optimizer.zero_grad()
    scaler.scale(run(torch.randn(2, 3)).square().mean()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    nn.utils.clip_grad_value_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    debugger.stop()
    debugger.step()
    config.unlink()


if __name__ == "__main__":
    root = Path(sys.argv[1])
    train(root, "training")
    train(root, "training_golden", eps=1e-2)
    train(root, "closed", compile="closed")
    train(root, "open", compile="open")
