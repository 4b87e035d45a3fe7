"""A small project under git: a network, a training script, and the commands that the tests run in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

NET = """import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-5)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        h = self.norm(x)
        h = F.gelu(self.up(h))
        return x + self.down(h)


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""
TRAIN = """import torch
from torch.nn import functional as F
from net import Net

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(2):
    loss = F.cross_entropy(model(torch.randn(8, 16)), torch.randint(0, 5, (8,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def make_project(place: Path) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    (place / "net.py").write_text(NET)
    (place / "train.py").write_text(TRAIN)
    git(place, "init", "-q", "-b", "main")
    commit(place, "A network")
    return place


def git(place: Path, *words: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", *who, *words], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def commit(place: Path, subject: str) -> None:
    git(place, "add", "net.py", "train.py")
    git(place, "commit", "-q", "-m", subject)


def edit(place: Path, old: str, new: str, file: str = "net.py") -> None:
    text = (place / file).read_text()
    assert text.count(old) == 1
    (place / file).write_text(text.replace(old, new))


def msprobe(place: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", **variables}
    return subprocess.run(
        [sys.executable, "-m", "msprobe", *words],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def trains(script: str = "train.py") -> list[str]:
    return ["--", sys.executable, script]
